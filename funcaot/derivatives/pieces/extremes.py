"""The gradient of the largest element, the smallest and the median: as eager spreads it.

Torch has two formulas. The one for tensors that are recorded multiplies by a mask, which gives NaN
where an infinite gradient arrives and strides of its own.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from funcaot._torch.levels.functorch import is_functorch_wrapped_tensor
from funcaot.derivatives.table import Derivative, register

aten = torch.ops.aten


def _vjp(
    cotangents: Sequence[Tensor | None], x: Tensor, *, results: tuple[Tensor]
) -> Tensor | None:
    (arriving,) = cotangents
    if arriving is None:
        return None
    # Before they are detached: what was recorded at a level that has ended lies in no level then.
    at_a_level = any(map(is_functorch_wrapped_tensor, (x, arriving)))
    x, value = x.detach(), results[0].detach()
    hit = (x == value) | (x.isnan() & value.isnan())
    share = arriving / hit.sum()
    # At a level of a transform, and on a GPU, eager multiplies as well.
    if x.device.type != "cpu" or at_a_level:
        return hit * share
    return torch.where(hit.contiguous(), share, 0.0)


def _jvp_of(op: Any) -> Any:
    def jvp(tangents: Sequence[Any], x: Tensor) -> Tensor:
        hit = x == op(x)
        return (hit * (tangents[0] / hit.sum())).sum()

    return jvp


for _name in ("max", "min", "median", "nanmedian"):
    _op = getattr(aten, _name).default
    register(Derivative(_op, vjp=_vjp, jvp=_jvp_of(_op), reads_results=True))
