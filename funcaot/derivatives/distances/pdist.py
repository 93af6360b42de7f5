"""``pdist``: distances of order ``p`` between the rows of one matrix."""

from __future__ import annotations

import torch
from torch import Tensor

from funcaot.derivatives.distances.norms import scaled_differences
from funcaot.derivatives.table import Derivative, register
from funcaot.derivatives.ways import transposed

aten = torch.ops.aten


def _backward(arriving: Tensor, rows: Tensor, p: float, pdist: Tensor) -> Tensor:
    count = rows.shape[0]
    if count < 2 or rows.shape[1] == 0:
        return torch.zeros_like(rows)
    first, second = torch.triu_indices(count, count, 1, device=rows.device).unbind()
    pushed = scaled_differences(arriving, rows[first] - rows[second], pdist, p)
    zeros = torch.zeros_like(rows)
    return zeros.index_add(0, first, pushed).index_add(0, second, pushed, alpha=-1)


register(
    Derivative(
        aten._pdist_forward.default, jvp=transposed(aten._pdist_forward.default), reverse=False
    )
)
register(Derivative(aten._pdist_backward.default, _backward))
