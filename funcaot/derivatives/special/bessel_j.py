"""``bessel_j0`` and ``bessel_j1``: ``J0' = -J1`` and ``J1' = J0 - J1 / x``."""

from __future__ import annotations

import torch
from torch import Tensor

from funcaot.derivatives.special.unary import over, register_unary

aten = torch.ops.aten


def _j0(x: Tensor) -> Tensor:
    return -torch.special.bessel_j1(x)


def _j1(x: Tensor) -> Tensor:
    return torch.special.bessel_j0(x) - over(torch.special.bessel_j1(x), x, 0.5)


register_unary(aten.special_bessel_j0.default, _j0)
register_unary(aten.special_bessel_j1.default, _j1)
