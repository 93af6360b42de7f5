"""``scatter_reduce`` in forward mode, which torch silently drops where products are taken."""

from __future__ import annotations

import torch

from funcaot.derivatives.table import Derivative, register
from funcaot.derivatives.ways import transposed

_OP = torch.ops.aten.scatter_reduce.two

register(Derivative(_OP, jvp=transposed(_OP), reverse=False))
