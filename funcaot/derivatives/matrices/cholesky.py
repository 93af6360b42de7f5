"""Forward mode of ``cholesky_inverse``, which torch gets wrong, and of the old ``cholesky``."""

from __future__ import annotations

import torch
from torch import Tensor

from funcaot.derivatives.table import Derivative, register
from funcaot.derivatives.ways import transposed

aten = torch.ops.aten

# Torch's gradient is right, and what it pushes forward isn't the transpose of that.
register(
    Derivative(
        aten.cholesky_inverse.default,
        jvp=transposed(aten.cholesky_inverse.default),
        reverse=False,
    )
)

# Later versions of torch have it no more.
if hasattr(aten, "cholesky"):

    def _factor(matrix: Tensor, upper: bool = False) -> Tensor:
        return torch.linalg.cholesky(matrix, upper=upper)

    register(Derivative(aten.cholesky.default, formula=_factor, reverse=False))
