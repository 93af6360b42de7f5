"""Shifted Chebyshev polynomials: those of ``2 x - 1``."""

from __future__ import annotations

from torch import Tensor

from funcaot.derivatives.special.recurrence import register_polynomial


def _step(degree: int, x: Tensor, before: Tensor, last: Tensor) -> Tensor:
    return 2 * (2 * x - 1) * last - before


register_polynomial("shifted_chebyshev_polynomial_t", lambda x: 2 * x - 1, _step)
register_polynomial("shifted_chebyshev_polynomial_u", lambda x: 2 * (2 * x - 1), _step)
register_polynomial("shifted_chebyshev_polynomial_v", lambda x: 2 * (2 * x - 1) - 1, _step)
register_polynomial("shifted_chebyshev_polynomial_w", lambda x: 2 * (2 * x - 1) + 1, _step)
