"""Kinds of operators, as they appear in graphs."""

from __future__ import annotations

from torch._ops import HigherOrderOperator, OpOverload

__all__ = ["HigherOrderOperator", "OpOverload"]
