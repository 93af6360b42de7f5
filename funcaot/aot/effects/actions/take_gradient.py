"""The input becomes a result for autograd: its data and where its gradient goes."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import torch

from funcaot._torch.levels import functorch
from funcaot.aot.effects.actions.action import Action, Made
from funcaot.aot.graph.tensor_spec import TensorSpec


@dataclass(frozen=True)
class TakeGradient(Action):
    """New data from a result, which autograd sees; in the shape that the input has by then.

    Attributes:
        value: The result.
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
        """Copy it, recorded if it has a gradient."""
        value = made.result(self.value)
        with torch.set_grad_enabled(functorch.requires_grad_at_any_level(value)):
            target.copy_(value)

    def __str__(self) -> str:
        """As the plan shows it."""
        return f"= result {self.value} with its gradient"
