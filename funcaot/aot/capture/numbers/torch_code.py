"""Functions of torch that are written in Python, as code that a capture follows.

Such a function asks first whether a mode takes it over. Here nobody does, so that what it calls
goes through the mode instead, and the open numbers go on to what computes with them.
"""

from __future__ import annotations

import types
from collections.abc import Callable
from typing import Any

import torch.nn.functional as F

__all__ = ["followed"]

_MODULES = ("torch.nn.functional", "torch.functional")
# These have rules as a whole.
_WHOLE = (F.batch_norm, F.instance_norm)
_ASKS = "has_torch_function"


def followed(func: Callable[..., Any]) -> Callable[..., Any] | None:
    """A function of torch that asks for no mode; None for one that isn't written in Python.

    Args:
        func: A function.
    """
    if not isinstance(func, types.FunctionType) or func in _WHOLE:
        return None
    if func.__module__ not in _MODULES:
        return None
    asked = [name for name in func.__code__.co_names if name.startswith(_ASKS)]
    if not asked:
        return None
    namespace = {**func.__globals__, **dict.fromkeys(asked, _nobody_takes_over)}
    made = types.FunctionType(
        func.__code__, namespace, func.__name__, func.__defaults__, func.__closure__
    )
    made.__kwdefaults__ = func.__kwdefaults__
    return made


def _nobody_takes_over(*args: Any) -> bool:
    return False
