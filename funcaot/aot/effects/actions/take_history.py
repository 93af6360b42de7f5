"""A wrapper among the inputs goes on from a result for autograd; its data is written by others."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import torch

from funcaot.aot.effects.actions.action import Action, Made
from funcaot.aot.effects.actions.follow import follow
from funcaot.aot.graph.tensor_spec import TensorSpec


@dataclass(frozen=True)
class TakeHistory(Action):
    """Where the gradient goes from now on.

    Attributes:
        value: The result, a wrapper of the new data.
    """

    writes: ClassVar[bool] = True

    value: int

    @property
    def results(self) -> tuple[int, ...]:
        """What it becomes."""
        return (self.value,)

    def changes_looks(self, spec: TensorSpec) -> bool:
        """It may require grad by then."""
        return not spec.requires_grad

    def replay(self, target: torch.Tensor, made: Made) -> None:
        """Tell autograd."""
        value = made.result(self.value)
        if target.requires_grad or value.requires_grad:
            follow(target, value)

    def __str__(self) -> str:
        """As the plan shows it."""
        return f"gradient to result {self.value}"
