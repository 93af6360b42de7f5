"""The gradient of ``cumprod`` along a size that is open.

Torch's formula for tensors that are recorded goes through the dimension one by one, so that a graph
has nodes for each number of its example. With an open size all pairs of numbers are taken at once.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from funcaot.derivatives.table import Derivative, register

aten = torch.ops.aten


def _by_pairs(arriving: Tensor, x: Tensor, dim: int) -> Tensor:
    """The gradient by the product up to each place without each of the numbers before it."""
    numbers, given = x.movedim(dim, -1).unsqueeze(-2), arriving.movedim(dim, -1).unsqueeze(-2)
    places = torch.arange(x.shape[dim], device=x.device)
    left_out = places.unsqueeze(-1) == places
    others = torch.where(left_out, torch.ones_like(numbers), numbers).cumprod(-1)
    later = places.unsqueeze(-1) <= places
    pairs = torch.where(later, given * others.conj(), torch.zeros_like(given))
    return pairs.sum(-1).movedim(-1, dim)


def _vjp(
    cotangents: Sequence[Tensor | None],
    x: Tensor,
    dim: int,
    *,
    results: tuple[Tensor],
    **_: Any,
) -> Tensor | None:
    (arriving,) = cotangents
    if arriving is None:
        return None
    arriving = arriving.to(x.dtype)
    if x.dim() == 0 or isinstance(x.shape[dim], int):
        return aten.cumprod_backward(arriving, x, dim, results[0])
    return _by_pairs(arriving, x, dim)


def _jvp(tangents: Sequence[Any], x: Tensor, dim: int, **given: Any) -> Tensor:
    """Torch's own formula: the first zero is told from the rest."""
    moved = tangents[0]
    zeros = (x == 0).to(torch.int64).cumsum(dim)
    before = (moved / x).cumsum(dim) * x.cumprod(dim)
    first = (x == 0) & (zeros == 1)
    found = torch.where(zeros == 0, before, torch.where(first, moved, x).cumprod(dim))
    dtype = given.get("dtype")
    return found if dtype is None else found.to(dtype)


register(Derivative(aten.cumprod.default, vjp=_vjp, jvp=_jvp, reads_results=True))
