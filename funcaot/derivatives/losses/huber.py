"""The backward of ``huber_loss`` in forward mode."""

from __future__ import annotations

import torch

from funcaot.derivatives.table import Derivative, register
from funcaot.derivatives.ways import transposed

_op = torch.ops.aten.huber_loss_backward.default
register(Derivative(_op, jvp=transposed(_op), reverse=False))
