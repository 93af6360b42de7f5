"""``weight_norm``: second derivatives, and forward mode.

Torch's kernel keeps the norms for its backward, whose formula takes them for constants when it is
differentiated.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from funcaot.derivatives.normalization.statistics import Maybe, precise
from funcaot.derivatives.table import Derivative, register

aten = torch.ops.aten


def _norms(direction: Tensor, dim: int) -> Tensor:
    """One for each place of a dimension, in a shape that broadcasts."""
    kept = dim % direction.dim()
    others = [place for place in range(direction.dim()) if place != kept]
    squares = direction * direction
    return (squares.sum(others, keepdim=True) if others else squares).sqrt()


def _normed(direction: Tensor, length: Tensor, dim: int = 0) -> tuple[Tensor, Tensor]:
    wide = precise(direction)
    norms = _norms(wide, dim)
    return (wide * (precise(length) / norms)).to(direction.dtype), norms


def _jvp(
    tangents: Sequence[Maybe], direction: Tensor, length: Tensor, dim: int = 0
) -> tuple[Tensor, Tensor]:
    by_direction, by_length = (*tangents, None)[:2]
    wide, long = precise(direction), precise(length)
    norms = _norms(wide, dim)
    moved_norms = torch.zeros_like(norms)
    scale, moved = long / norms, torch.zeros_like(wide)
    if by_direction is not None:
        along = precise(by_direction)
        product = wide * along
        others = [p for p in range(wide.dim()) if p != dim % wide.dim()]
        moved_norms = (product.sum(others, keepdim=True) if others else product) / norms
        moved = along * scale - wide * scale * moved_norms / norms
    if by_length is not None:
        moved = moved + wide * (precise(by_length) / norms)
    return moved.to(direction.dtype), moved_norms


register(Derivative(aten._weight_norm_interface.default, _normed, jvp=_jvp, later=True))
