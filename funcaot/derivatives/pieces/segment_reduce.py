"""``segment_reduce``: the derivative of its backward, and forward mode."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from funcaot.derivatives.table import Derivative, register
from funcaot.derivatives.ways import transposed
from funcaot.errors import UnsupportedError

aten = torch.ops.aten


def _backward(
    arriving: Tensor, output: Tensor, data: Tensor, reduce: str, **keywords: Any
) -> Tensor:
    lengths, offsets = keywords.get("lengths"), keywords.get("offsets")
    axis = keywords.get("axis", 0)
    if reduce == "prod":
        raise UnsupportedError(
            "The gradient of torch.segment_reduce by products was differentiated once more.",
            remedy="sum logarithms, or multiply with torch.prod.",
        )
    if lengths is None:
        if offsets is None:
            raise UnsupportedError(
                "torch.segment_reduce was differentiated without lengths or offsets.",
                remedy="pass lengths.",
            )
        lengths = offsets.diff(dim=-1)
    # Which segment each place is in; those after the last are in one more, which gives nothing.
    places = torch.arange(data.shape[axis], device=data.device).unsqueeze(-1)
    which = (places >= lengths.cumsum(-1).unsqueeze(-2)).sum(-1)
    which = which.reshape(*which.shape, *[1] * (data.dim() - which.dim())).expand(data.shape)

    def spread(per_segment: Tensor) -> Tensor:
        nothing = torch.zeros_like(per_segment.narrow(axis, 0, 1))
        return torch.cat([per_segment, nothing], axis).gather(axis, which)

    pushed = spread(arriving)
    if reduce == "sum":
        return pushed
    if reduce == "mean":
        counts = lengths.reshape(*lengths.shape, *[1] * (data.dim() - lengths.dim()))
        return pushed / spread(counts.expand(output.shape).to(data.dtype)).clamp(min=1)
    hit = (data == spread(output)).to(data.dtype)
    zeros = torch.zeros_like(torch.cat([output, output.narrow(axis, 0, 1)], axis))
    ties = zeros.scatter_add(axis, which, hit).gather(axis, which)
    return pushed * hit / ties.clamp(min=1)


register(
    Derivative(
        aten.segment_reduce.default, jvp=transposed(aten.segment_reduce.default), reverse=False
    )
)
register(Derivative(aten._segment_reduce_backward.default, _backward))
