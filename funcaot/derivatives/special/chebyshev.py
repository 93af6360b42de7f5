"""Chebyshev polynomials of the four kinds: ``P[n + 1] = 2 x P[n] - P[n - 1]``."""

from __future__ import annotations

from torch import Tensor

from funcaot.derivatives.special.recurrence import register_polynomial


def _step(degree: int, x: Tensor, before: Tensor, last: Tensor) -> Tensor:
    return 2 * x * last - before


register_polynomial("chebyshev_polynomial_t", lambda x: x, _step)
register_polynomial("chebyshev_polynomial_u", lambda x: 2 * x, _step)
register_polynomial("chebyshev_polynomial_v", lambda x: 2 * x - 1, _step)
register_polynomial("chebyshev_polynomial_w", lambda x: 2 * x + 1, _step)
