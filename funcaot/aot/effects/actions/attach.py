"""The input gets what the function left on the tensor object: attributes and hooks."""

from __future__ import annotations

from dataclasses import dataclass

import torch

from funcaot.aot.capture.attributes import Attached
from funcaot.aot.effects.actions.action import Action, Made


@dataclass(frozen=True)
class Attach(Action):
    """What was left.

    Attributes:
        left: Attributes and hooks.
    """

    left: Attached

    def replay(self, target: torch.Tensor, made: Made) -> None:
        """Set, delete and register."""
        for name, value in self.left.values:
            setattr(target, name, made.copied(value))
        for name in self.left.removed:
            delattr(target, name)
        for method, hook in self.left.hooks:
            getattr(target, method)(hook)

    def __str__(self) -> str:
        """As the plan shows it."""
        parts = [f"attribute {name} set" for name, _ in self.left.values]
        parts += [f"attribute {name} deleted" for name in self.left.removed]
        return ", ".join([*parts, *(method for method, _ in self.left.hooks)])
