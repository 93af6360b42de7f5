"""What methods of C are bound to, and what cells hold; the walk follows it like attributes.

``read = settings.get`` holds ``settings``, as a method that is written in Python holds its object.
"""

from __future__ import annotations

import types
from typing import Any

from funcaot.aot.closure.constants import is_scalar
from funcaot.rules.operands.reached import is_filled

__all__ = ["METHODS", "bound_to", "gets_any", "step_from"]

METHODS = (types.BuiltinFunctionType, types.MethodWrapperType)


def step_from(holder: Any) -> str:
    """Source text for the way on from something that holds one thing; empty for another object."""
    if type(holder) in METHODS or type(holder) is super:
        return "{parent}.__self__"
    if type(holder) is types.CellType and is_filled(holder):
        return "{parent}.cell_contents"
    return ""


def bound_to(holder: Any) -> Any:
    """What it holds; None for what says nothing more than its name: a module, a class, a constant.

    What torch's functions of C are bound to is none of Python's.
    """
    step = step_from(holder)
    if not step:
        return None
    held = getattr(holder, step.removeprefix("{parent}."))
    if type(holder) is types.CellType:
        return held
    is_named = isinstance(held, type | types.ModuleType) or is_scalar(held)
    return None if is_named or type(held).__name__ == "PyCapsule" else held


def gets_any(thing: Any) -> bool:
    """Whether a thing is an object's ``__getattribute__``, which gets attributes by text."""
    return type(thing) is types.MethodWrapperType and thing.__name__ == "__getattribute__"
