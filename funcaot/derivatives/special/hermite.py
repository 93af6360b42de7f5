"""Hermite polynomials, the physicists' and the probabilists'."""

from __future__ import annotations

from torch import Tensor

from funcaot.derivatives.special.recurrence import register_polynomial


def _physicists(degree: int, x: Tensor, before: Tensor, last: Tensor) -> Tensor:
    return 2 * x * last - 2 * degree * before


def _probabilists(degree: int, x: Tensor, before: Tensor, last: Tensor) -> Tensor:
    return x * last - degree * before


register_polynomial("hermite_polynomial_h", lambda x: 2 * x, _physicists)
register_polynomial("hermite_polynomial_he", lambda x: x, _probabilists)
