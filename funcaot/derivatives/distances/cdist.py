"""``cdist``: distances of order ``p`` between the rows of two matrices."""

from __future__ import annotations

import math

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


register(
    Derivative(
        aten._cdist_forward.default, jvp=transposed(aten._cdist_forward.default), reverse=False
    )
)
register(Derivative(aten._cdist_backward.default, _backward))
# What torch takes for many rows, as a product of matrices.
register(
    Derivative(
        aten._euclidean_dist.default, jvp=transposed(aten._euclidean_dist.default), reverse=False
    )
)
