"""Replace what ``torch.autograd.Function.apply`` does, also where a bound ``apply`` was kept."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from funcaot._torch.autograd.autograd import native_apply as apply_of
from funcaot._torch.calls import native_apply
from funcaot._torch.calls.native_apply import NativeApply
from funcaot._torch.calls.python_apply import PythonApply
from funcaot._torch.patches import require

__all__ = ["past_interception", "replaced_apply", "require_interception"]

_IS_PYTHON = isinstance(torch.autograd.Function.__dict__["apply"], classmethod)


def replaced_apply(
    hook: Callable[[type, tuple[Any, ...], dict[str, Any]], Any], wants: Callable[[type], bool]
) -> PythonApply | NativeApply:
    """What replaces ``apply`` of classes that are wanted: ``hook(cls, args, kwargs)`` is called."""
    return (PythonApply if _IS_PYTHON else NativeApply)(hook, wants)


def require_interception() -> None:
    """Refuse to go on where ``apply`` can't be replaced.

    Raises:
        UnsupportedError: It says what is different in this torch.
    """
    require("apply in Python" if _IS_PYTHON else "apply in C++")


def past_interception(function: type) -> Callable[..., Any]:
    """The ``apply`` of a Function class, not intercepted itself; what its forward calls may be."""
    return apply_of(function) if _IS_PYTHON else native_apply.past_interception(function)
