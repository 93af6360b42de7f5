"""Kinds of operators, and private ones, as they appear in graphs."""

from __future__ import annotations

import torch
from torch._ops import HigherOrderOperator, OpOverload

__all__ = ["TRAINING_NORMS", "HigherOrderOperator", "OpOverload"]

# Batch norms that return the new running statistics, behind the output and what is kept for it.
TRAINING_NORMS = (
    torch.ops.aten._native_batch_norm_legit_functional.default,
    torch.ops.aten._batch_norm_with_update_functional.default,
)
