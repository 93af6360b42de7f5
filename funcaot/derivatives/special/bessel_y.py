"""``bessel_y0`` and ``bessel_y1``: ``Y0' = -Y1`` and ``Y1' = Y0 - Y1 / x``."""

from __future__ import annotations

import torch
from torch import Tensor

from funcaot.derivatives.special.unary import register_unary

aten = torch.ops.aten


def _y0(x: Tensor) -> Tensor:
    return -torch.special.bessel_y1(x)


def _y1(x: Tensor) -> Tensor:
    return torch.special.bessel_y0(x) - torch.special.bessel_y1(x) / x


register_unary(aten.special_bessel_y0.default, _y0)
register_unary(aten.special_bessel_y1.default, _y1)
