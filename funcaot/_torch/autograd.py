"""Private names of autograd: single-level Functions, forward mode, ``once_differentiable``."""

from __future__ import annotations

import types
from collections.abc import Callable
from typing import Any, cast

import torch
import torch.autograd.forward_ad as forward_ad
from torch._C import _is_fwd_grad_enabled as is_forward_grad_enabled
from torch.autograd.forward_ad import _set_fwd_grad_enabled as forward_grad_enabled
from torch.autograd.function import (
    _is_setup_context_defined,
    _SingleLevelFunction,
    once_differentiable,
)

__all__ = [
    "SingleLevelFunction",
    "compiled_autograd_key",
    "defines_setup_context",
    "forward_grad_enabled",
    "in_dual_level",
    "is_forward_grad_enabled",
    "native_apply",
    "new_function_class",
    "once_differentiable",
    "once_differentiable_body",
]

SingleLevelFunction = _SingleLevelFunction
compiled_autograd_key = torch.autograd.Function._compiled_autograd_key
_ONCE_CODE = once_differentiable(lambda ctx: None).__code__


def in_dual_level() -> bool:
    """Whether a ``torch.autograd.forward_ad.dual_level`` is open."""
    return forward_ad._current_level >= 0


def defines_setup_context(function: type) -> bool:
    """Whether ``function`` separates ``setup_context`` from ``forward``."""
    return _is_setup_context_defined(function.setup_context)


def native_apply(function: type) -> Callable[..., Any]:
    """The C++ ``apply`` of a Function class, without the Python layer above it."""
    if issubclass(function, torch.autograd.Function):
        return cast("Any", super(torch.autograd.Function, function)).apply
    return function.apply


def new_function_class(name: str, base: type, namespace: dict[str, Any]) -> type:
    """Make a subclass of a Function class at run time."""
    return types.new_class(name, (base,), {}, lambda body: body.update(namespace))


def once_differentiable_body(backward: Callable[..., Any]) -> Callable[..., Any] | None:
    """What ``@once_differentiable`` decorates, or None when ``backward`` isn't decorated."""
    if getattr(backward, "__code__", None) is _ONCE_CODE:
        return backward.__wrapped__
    return None
