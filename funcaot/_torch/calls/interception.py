"""Replace what ``torch.autograd.Function.apply`` does, also where a bound ``apply`` was kept."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from funcaot._torch.autograd.autograd import native_apply as apply_of
from funcaot._torch.calls import native_apply
from funcaot._torch.calls.native_apply import NativeApply
from funcaot._torch.calls.python_apply import PythonApply

__all__ = ["ReplacedApply", "past_interception"]

_IS_PYTHON = isinstance(torch.autograd.Function.__dict__["apply"], classmethod)

ReplacedApply: type[PythonApply | NativeApply] = PythonApply if _IS_PYTHON else NativeApply


def past_interception(function: type) -> Callable[..., Any]:
    """The ``apply`` of a Function class, not intercepted itself; what its forward calls may be."""
    return apply_of(function) if _IS_PYTHON else native_apply.past_interception(function)
