"""The gradient of ``masked_select``, which lies in memory as what it was selected from.

Torch has two formulas. The one for tensors that are recorded makes a contiguous tensor.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from funcaot._torch.levels.functorch import is_functorch_wrapped_tensor
from funcaot.derivatives.table import Derivative, register

_OP = torch.ops.aten.masked_select.default


def _vjp(cotangents: Sequence[Tensor | None], x: Tensor, mask: Tensor) -> Tensor | None:
    (arriving,) = cotangents
    if arriving is None:
        return None
    zeros = torch.zeros_like(x.detach().expand(torch.broadcast_shapes(x.shape, mask.shape)))
    # At a level of a transform eager makes a new tensor as well.
    if any(map(is_functorch_wrapped_tensor, (mask, arriving))):
        return zeros.masked_scatter(mask, arriving).sum_to_size(x.shape)
    return zeros.masked_scatter_(mask, arriving).sum_to_size(x.shape)


def _jvp(tangents: Sequence[Any], x: Tensor, mask: Tensor) -> Tensor | None:
    return None if tangents[0] is None else _OP(tangents[0], mask)


register(Derivative(_OP, vjp=_vjp, jvp=_jvp))
