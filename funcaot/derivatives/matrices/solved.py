"""Solutions, log-determinants and reflectors whose tangents torch can't push forward again.

Torch's formulas for forward mode take the result of the op for a constant when they are pushed
forward themselves. So forward mode is the transpose of the gradient here.
"""

from __future__ import annotations

import torch

from funcaot.derivatives.table import Derivative, register
from funcaot.derivatives.ways import transposed

aten = torch.ops.aten

for _op in (
    aten._linalg_slogdet.default,
    aten._linalg_solve_ex.default,
    aten.linalg_householder_product.default,
):
    register(Derivative(_op, jvp=transposed(_op), reverse=False))
