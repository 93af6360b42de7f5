"""The input stops to require grad: a leaf by ``requires_grad_(False)``, another by ``detach_``."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import torch

from funcaot.aot.effects.actions.action import Action, Made
from funcaot.aot.graph.tensor_spec import TensorSpec


@dataclass(frozen=True)
class StopRequiringGrad(Action):
    """It happens when everything else is done.

    Attributes:
        is_leaf: Whether the input is a leaf.
    """

    is_last: ClassVar[bool] = True

    is_leaf: bool

    def changes_looks(self, spec: TensorSpec) -> bool:
        """It does."""
        return True

    def replay(self, target: torch.Tensor, made: Made) -> None:
        """By the method that eager takes for it."""
        if self.is_leaf:
            target.requires_grad_(False)
        else:
            target.detach_()

    def __str__(self) -> str:
        """As the plan shows it."""
        return f"{'requires_grad_(False)' if self.is_leaf else 'detach_'} after the call"
