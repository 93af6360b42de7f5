"""Laguerre polynomials."""

from __future__ import annotations

from torch import Tensor

from funcaot.derivatives.special.recurrence import register_polynomial


def _step(degree: int, x: Tensor, before: Tensor, last: Tensor) -> Tensor:
    return ((2 * degree + 1 - x) * last - degree * before) / (degree + 1)


register_polynomial("laguerre_polynomial_l", lambda x: 1 - x, _step)
