"""Torch's numbers for how a loss is reduced."""

from __future__ import annotations

from torch import Tensor

__all__ = ["reduced"]

MEAN, SUM = 1, 2


def reduced(losses: Tensor, reduction: int, like: Tensor) -> Tensor:
    """The losses of the rows as torch returns them, in the shape of what arrives at them."""
    if reduction == MEAN:
        losses = losses.mean()
    elif reduction == SUM:
        losses = losses.sum()
    return losses.reshape(like.shape)
