"""Places in autograd's graph for tensors of a tape, without a node of the tape."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

__all__ = ["Attach", "Enter"]


class Enter(torch.autograd.Function):
    """Identity: a new wrapper of the same traced value, so that no node is recorded."""

    @staticmethod
    def forward(
        ctx: Any, leaf: torch.Tensor, again: Callable[[torch.Tensor], torch.Tensor]
    ) -> torch.Tensor:
        """What ``again`` makes of the leaf."""
        ctx.set_materialize_grads(False)
        return again(leaf)

    @staticmethod
    def backward(  # type: ignore[override]
        ctx: Any, gradient: torch.Tensor | None
    ) -> tuple[torch.Tensor | None, None]:
        """The gradient as it is."""
        return gradient, None


class Attach(torch.autograd.Function):
    """Give a tensor that exists already a place in autograd's graph."""

    @staticmethod
    def forward(ctx: Any, leaf: torch.Tensor, tensor: torch.Tensor) -> torch.Tensor:
        """The tensor itself."""
        ctx.mark_dirty(tensor)
        ctx.set_materialize_grads(False)
        return tensor

    @staticmethod
    def backward(  # type: ignore[override]
        ctx: Any, gradient: torch.Tensor | None
    ) -> tuple[torch.Tensor | None, None]:
        """The gradient goes to the leaf."""
        return gradient, None
