"""The deprecated ``cholesky`` in forward mode, which is that of ``linalg.cholesky``."""

from __future__ import annotations

import torch
from torch import Tensor

from funcaot.derivatives.table import Derivative, register

# Later versions of torch have it no more.
if hasattr(torch.ops.aten, "cholesky"):

    def _factor(matrix: Tensor, upper: bool = False) -> Tensor:
        return torch.linalg.cholesky(matrix, upper=upper)

    register(Derivative(torch.ops.aten.cholesky.default, formula=_factor, reverse=False))
