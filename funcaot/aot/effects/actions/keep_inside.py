"""A wrapper among the inputs keeps another tensor inside, as a jagged one its largest length."""

from __future__ import annotations

from dataclasses import dataclass

import torch

from funcaot.aot.effects.actions.action import Action, Made
from funcaot.aot.graph.tensor_spec import TensorSpec


@dataclass(frozen=True)
class KeepInside(Action):
    """What a class computes once, when it is asked for, and names among its inner tensors then.

    Attributes:
        name: The attribute.
        value: The result that it becomes.
    """

    name: str
    value: int

    @property
    def results(self) -> tuple[int, ...]:
        """What is kept."""
        return (self.value,)

    def changes_looks(self, spec: TensorSpec) -> bool:
        """It does: the tensor is a part of the wrapper's."""
        return True

    def replay(self, target: torch.Tensor, made: Made) -> None:
        """Set it."""
        setattr(target, self.name, made.result(self.value))

    def __str__(self) -> str:
        """As the plan shows it."""
        return f"{self.name} = result {self.value}"
