"""Where a compiled program is asked for its values only, and needs no Function around it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch

from funcaot._torch.autograd.autograd import in_dual_level
from funcaot._torch.levels.functorch import (
    dispatch_mode_count,
    fully_unwrapped,
    function_mode_active,
    is_legacy_batchedtensor,
    only_vmaps_active,
)
from funcaot.classes.protocol import values_of

__all__ = ["only_values"]


def only_values(
    function: type, operands: Sequence[Any]
) -> Callable[[Sequence[Any]], tuple[Any, ...]] | None:
    """What computes a program's values, if nobody differentiates them; else None.

    That is so if each level is a vmap and nothing at the base records.
    """
    values = values_of(function)
    if values is None or not _are_only_batched(operands):
        return None
    return values


def _are_only_batched(operands: Sequence[Any]) -> bool:
    if dispatch_mode_count() or function_mode_active() or in_dual_level():
        return False
    recording = torch.is_grad_enabled()
    for operand in operands:
        base = fully_unwrapped(operand)
        if (recording and base.requires_grad) or is_legacy_batchedtensor(base):
            return False
    return only_vmaps_active()
