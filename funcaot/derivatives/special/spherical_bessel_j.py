"""``spherical_bessel_j0``, which is ``sin(x) / x``; near zero by its series."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from funcaot.derivatives.table import Derivative, register

_TERMS = 12
_NEAR = 1.0


def _formula(x: Tensor) -> Tensor:
    near = x.abs() < _NEAR
    small = torch.where(near, x, torch.zeros_like(x))
    square, series = small * small, torch.zeros_like(x)
    for term in reversed(range(_TERMS)):
        series = series * square + (-1) ** term / math.factorial(2 * term + 1)
    large = torch.where(near, torch.ones_like(x), x)
    return torch.where(near, series, large.sin() / large)


register(Derivative(torch.ops.aten.special_spherical_bessel_j0.default, _formula))
