"""``modified_bessel_i0`` and ``modified_bessel_i1``: ``I0' = I1`` and ``I1' = I0 - I1 / x``."""

from __future__ import annotations

import torch
from torch import Tensor

from funcaot.derivatives.special.unary import over, register_unary

aten = torch.ops.aten


def _i0(x: Tensor) -> Tensor:
    return torch.special.modified_bessel_i1(x)


def _i1(x: Tensor) -> Tensor:
    i1 = torch.special.modified_bessel_i1(x)
    return torch.special.modified_bessel_i0(x) - over(i1, x, 0.5)


register_unary(aten.special_modified_bessel_i0.default, _i0)
register_unary(aten.special_modified_bessel_i1.default, _i1)
