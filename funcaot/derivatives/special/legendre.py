"""Legendre polynomials."""

from __future__ import annotations

from torch import Tensor

from funcaot.derivatives.special.recurrence import register_polynomial


def _step(degree: int, x: Tensor, before: Tensor, last: Tensor) -> Tensor:
    return ((2 * degree + 1) * x * last - degree * before) / (degree + 1)


register_polynomial("legendre_polynomial_p", lambda x: x, _step)
