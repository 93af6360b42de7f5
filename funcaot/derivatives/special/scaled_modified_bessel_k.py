"""``scaled_modified_bessel_k0`` and ``k1``, which are ``exp(x)`` times the unscaled ones."""

from __future__ import annotations

import torch
from torch import Tensor

from funcaot.derivatives.special.unary import register_unary

aten = torch.ops.aten


def _k0(x: Tensor) -> Tensor:
    k0, k1 = torch.special.scaled_modified_bessel_k0, torch.special.scaled_modified_bessel_k1
    return k0(x) - k1(x)


def _k1(x: Tensor) -> Tensor:
    k0, k1 = torch.special.scaled_modified_bessel_k0, torch.special.scaled_modified_bessel_k1
    return k1(x) - k0(x) - k1(x) / x


register_unary(aten.special_scaled_modified_bessel_k0.default, _k0)
register_unary(aten.special_scaled_modified_bessel_k1.default, _k1)
