"""Which functions of torch run no code of a user: what lifts operands asks, to record nothing."""

from __future__ import annotations

import types
from typing import Any

import torch

from funcaot.aot.closure.ran import is_users

__all__ = ["CALLS_WHAT_IT_IS_GIVEN", "calls_no_user"]

_BUILTIN = (types.BuiltinFunctionType, types.MethodDescriptorType)
_BUILTIN += (types.WrapperDescriptorType, types.MethodWrapperType)

CALLS_WHAT_IT_IS_GIVEN = torch.nn.functional.triplet_margin_with_distance_loss


def calls_no_user(function: Any, given: Any) -> bool:
    """Whether a function of torch's runs no code of the user's, called with some arguments.

    An object among these may be asked for its ``__index__``, or its ``__torch_function__`` called.
    """
    if _has_objects(given):
        return False
    if isinstance(function, _BUILTIN):
        return True
    if function is CALLS_WHAT_IT_IS_GIVEN:
        return False
    module = getattr(function, "__module__", None)
    return isinstance(function, types.FunctionType) and (
        module in ("torch.nn.functional", "torch.functional")
        or (module == "torch._tensor" and function.__name__ not in ("backward", "register_hook"))
    )


def _has_objects(given: Any) -> bool:
    if isinstance(given, slice):
        return _has_objects((given.start, given.stop, given.step))
    if isinstance(given, list | tuple):
        return any(map(_has_objects, given))
    if isinstance(given, dict):
        return any(map(_has_objects, given.values()))
    return not isinstance(given, torch.Tensor) and is_users(type(given))
