"""A tensor that was written to goes on, for autograd, from what was written."""

from __future__ import annotations

from typing import Any

import torch

from funcaot._torch.autograd import autograd


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


def follow(target: torch.Tensor, value: torch.Tensor) -> None:
    """Let the gradient of a tensor, which holds a value by now, go to that value."""
    with torch.enable_grad():
        # Not through the operator, which may be installed for every Function.
        autograd.native_apply(Follow)(target, value)
