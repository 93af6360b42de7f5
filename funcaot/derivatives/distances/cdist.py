"""``cdist``: distances of order ``p`` between the rows of two matrices."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from funcaot.derivatives.distances.norms import scaled_differences
from funcaot.derivatives.table import Derivative, register
from funcaot.derivatives.ways import transposed

aten = torch.ops.aten


def _backward(arriving: Tensor, x1: Tensor, x2: Tensor, p: float, cdist: Tensor) -> Tensor:
    """The gradient of ``x1``; that of ``x2`` is the same op with both exchanged."""
    difference = x1.unsqueeze(-2) - x2.unsqueeze(-3)
    if math.prod(x1.shape) == 0 or math.prod(x2.shape) == 0:
        return torch.zeros_like(x1)
    return scaled_differences(arriving, difference, cdist, p).sum(-2)


def _many_rows(
    cotangents: Sequence[Tensor | None], x1: Tensor, x2: Tensor, *, results: Sequence[Tensor]
) -> tuple[Tensor | None, ...]:
    """Torch's gradients, without writing to what a tangent of them was recorded with."""
    (arriving,), (distances,) = cotangents, results
    if arriving is None:
        return None, None
    away = distances != 0
    ratio = torch.where(away, arriving / torch.where(away, distances, 1), 0)
    return (
        x1 * ratio.sum(-1, keepdim=True) - ratio @ x2,
        x2 * ratio.sum(-2).unsqueeze(-1) - ratio.mT @ x1,
    )


def _batched_backward(
    size: int, in_dims: tuple[Any, dict[str, Any]], *args: Any
) -> tuple[tuple[Tensor], tuple[int]]:
    """The op for a batch in front of all arguments; torch's rule sums over one of gradients."""
    arriving, x1, x2, p, cdist = args
    dims, _ = in_dims
    rank = arriving.dim() - (dims[0] is not None)

    def in_front(x: Tensor, dim: int | None) -> Tensor:
        x = x.unsqueeze(0) if dim is None else x.movedim(dim, 0)
        between = (1,) * (rank + 1 - x.dim())
        return x.reshape(x.shape[0], *between, *x.shape[1:]).expand(size, *between, *x.shape[1:])

    pairs = zip((arriving, x1, x2, cdist), (*dims[:3], dims[4]), strict=True)
    arriving, left, right, cdist = (in_front(x, dim) for x, dim in pairs)
    gradient = aten._cdist_backward.default(arriving, left, right, p, cdist)
    shape = list(x1.shape)
    if dims[1] is not None:
        del shape[dims[1]]
    return (gradient.reshape(size, *shape),), (0,)


register(
    Derivative(
        aten._cdist_forward.default, jvp=transposed(aten._cdist_forward.default), reverse=False
    )
)
register(Derivative(aten._cdist_backward.default, _backward, batched=_batched_backward))
# What torch takes for many rows, as a product of matrices.
register(
    Derivative(
        aten._euclidean_dist.default,
        vjp=_many_rows,
        jvp=transposed(aten._euclidean_dist.default),
        reads_results=True,
    )
)
