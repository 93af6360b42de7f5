"""``modified_bessel_k0`` and ``modified_bessel_k1``: ``K0' = -K1`` and ``K1' = -K0 - K1 / x``."""

from __future__ import annotations

import torch
from torch import Tensor

from funcaot.derivatives.special.unary import register_unary

aten = torch.ops.aten


def _k0(x: Tensor) -> Tensor:
    return -torch.special.modified_bessel_k1(x)


def _k1(x: Tensor) -> Tensor:
    return -torch.special.modified_bessel_k0(x) - torch.special.modified_bessel_k1(x) / x


register_unary(aten.special_modified_bessel_k0.default, _k0)
register_unary(aten.special_modified_bessel_k1.default, _k1)
