"""A wrapper among the inputs goes on from a result for autograd; its data is written by others."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

import torch

from funcaot._torch.autograd import autograd
from funcaot.aot.effects.actions.action import Action, Made
from funcaot.aot.graph.tensor_spec import TensorSpec


class Follow(torch.autograd.Function):
    """A tensor that was written to, whose gradient goes to what was written.

    The tensor comes first, unlike in ``Attach``: of a view, autograd takes the first gradient for
    that of its base.
    """

    @staticmethod
    def forward(ctx: Any, target: torch.Tensor, value: torch.Tensor) -> torch.Tensor:
        """The tensor itself, as a class's own ``copy_`` needn't leave it."""
        ctx.mark_dirty(target)
        ctx.set_materialize_grads(False)
        return target

    @staticmethod
    def backward(  # type: ignore[override]
        ctx: Any, gradient: torch.Tensor | None
    ) -> tuple[None, torch.Tensor | None]:
        """The gradient as it came."""
        return None, gradient


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
            with torch.enable_grad():
                # Not through the operator, which may be installed for every Function.
                autograd.native_apply(Follow)(target, value)

    def __str__(self) -> str:
        """As the plan shows it."""
        return f"gradient to result {self.value}"
