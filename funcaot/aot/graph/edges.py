"""Autograd nodes that leave a tensor as it is; an entry puts them where eager has an edge."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from funcaot._torch.autograd import autograd


class _HiddenLeaf(torch.autograd.Function):
    """A tensor as it is, with a derivative that ends at a leaf nobody sees."""

    @staticmethod
    def forward(ctx: Any, hidden: torch.Tensor, tensor: torch.Tensor) -> torch.Tensor:
        """The tensor, detached."""
        return tensor.detach()

    @staticmethod
    def backward(ctx: Any, gradient: torch.Tensor) -> tuple[None, None]:  # type: ignore[override]
        """No gradient."""
        return None, None


def requiring_grad(
    results: Sequence[torch.Tensor | None], traced: Sequence[torch.Tensor]
) -> tuple[torch.Tensor | None, ...]:
    """Results as in eager: they require grad, though it leads to nobody's tensor.

    Args:
        results: What a call computed.
        traced: The tape's tensors that these are.
    """
    hidden = torch.empty(0, requires_grad=True)
    with torch.enable_grad():
        return tuple(
            _HiddenLeaf.apply(hidden, result)
            if result is not None and of.requires_grad and not result.requires_grad
            else result
            for result, of in zip(results, traced, strict=True)
        )


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
