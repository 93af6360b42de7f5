"""The input becomes a result for autograd: its data and where its gradient goes."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import torch

from funcaot._torch.levels import functorch
from funcaot._torch.levels.situation import situation
from funcaot.aot.effects.actions.action import Action, Made
from funcaot.aot.effects.actions.follow import follow
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
        """Copy it, recorded if it has a gradient.

        The derivative of ``copy_`` gives zeros to what the input was made of. They would be added
        to its gradient, which then has their strides; so a usual tensor only follows the result.
        """
        value = made.result(self.value)
        if _is_usual(target) and value.requires_grad:
            with torch.no_grad():
                target.copy_(value)
            follow(target, value)
            return
        with torch.set_grad_enabled(functorch.requires_grad_at_any_level(value)):
            target.copy_(value)

    def __str__(self) -> str:
        """As the plan shows it."""
        return f"= result {self.value} with its gradient"


def _is_usual(target: torch.Tensor) -> bool:
    """Whether base autograd alone records, and what it recorded concerns no other tensor."""
    recorded = target.requires_grad and not target.is_leaf
    return recorded and not target._is_view() and situation().is_bare
