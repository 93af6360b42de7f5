"""Autograd nodes that leave a tensor as it is; an entry puts them where eager has an edge."""

from __future__ import annotations

from typing import Any

import torch

from funcaot._torch.autograd import autograd


class HiddenLeaf(torch.autograd.Function):
    """A tensor as it is, with a derivative that ends at a leaf nobody sees."""

    @staticmethod
    def forward(ctx: Any, hidden: torch.Tensor, tensor: torch.Tensor) -> torch.Tensor:
        """The tensor, detached."""
        return tensor.detach()

    @staticmethod
    def backward(ctx: Any, gradient: torch.Tensor) -> tuple[None, None]:  # type: ignore[override]
        """No gradient."""
        return None, None


class _Edge(torch.autograd.Function):
    """The same memory and the same gradient, but not the object that the epilogue writes to."""

    @staticmethod
    def forward(ctx: Any, tensor: torch.Tensor) -> torch.Tensor:
        ctx.set_materialize_grads(False)  # What has no gradient has none in eager either.
        return tensor.detach()

    @staticmethod
    def backward(  # type: ignore[override]
        ctx: Any, gradient: torch.Tensor | None
    ) -> torch.Tensor | None:
        return gradient


edge = autograd.native_apply(_Edge)
