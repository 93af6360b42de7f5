"""What rules for open numbers ask about the call that they are given."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeAlias

import torch

from funcaot._torch.tensors.sizes.narrow_numbers import Call, is_real

__all__ = ["FULL", "Call", "Rule", "is_full", "is_real", "name_of"]

# What to call instead of a function with its arguments and keywords; None if there is nothing.
Rule: TypeAlias = Callable[[Any, tuple[Any, ...], dict[str, Any]], Call | None]
FULL = (torch.float32, torch.float64, torch.complex64, torch.complex128)


def name_of(func: Any) -> str:
    """The name of an op or of the method that is the same."""
    module = getattr(func, "__module__", None)
    name = getattr(func, "__name__", "")
    if module is not None and not str(module).startswith("torch"):
        return ""
    return name


def is_full(*tensors: Any) -> bool:
    """Whether all of them are tensors of one dtype that torch computes with as it is."""
    return (
        all(isinstance(tensor, torch.Tensor) and tensor.dtype in FULL for tensor in tensors)
        and len({tensor.dtype for tensor in tensors}) == 1
    )
