"""``floor_divide``, which is constant between its jumps, as ``torch.div`` that rounds down is."""

from __future__ import annotations

import torch
from torch import Tensor

from funcaot.derivatives.table import Derivative, register
from funcaot.derivatives.ways import transposed


def _rounded_down(x: Tensor, y: Tensor | float) -> Tensor:
    return torch.div(x, y, rounding_mode="floor")


for _op in (torch.ops.aten.floor_divide.default, torch.ops.aten.floor_divide.Scalar):
    register(Derivative(_op, _rounded_down, jvp=transposed(_rounded_down)))
