"""``ormqr`` in forward mode."""

from __future__ import annotations

import torch

from funcaot.derivatives.table import Derivative, register
from funcaot.derivatives.ways import transposed

_OP = torch.ops.aten.ormqr.default

register(Derivative(_OP, jvp=transposed(_OP), reverse=False))
