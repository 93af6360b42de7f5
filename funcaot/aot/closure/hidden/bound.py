"""What methods of C are bound to, and what cells hold; the walk follows it like attributes.

``read = settings.get`` holds ``settings``, as a method that is written in Python holds its object.
"""

from __future__ import annotations

import types
from typing import Any

from funcaot.aot.closure.constants import is_scalar
from funcaot.rules.operands.reached import is_filled

__all__ = ["METHODS", "gets_any", "held_by"]

METHODS = (types.BuiltinFunctionType, types.MethodWrapperType)
_BOUND = (*METHODS, super)


def held_by(holder: Any) -> tuple[str, Any] | None:
    """What it holds, after the attribute that gives it; None of another object.

    A module, a class or a constant says nothing more than the method's name, and what torch's
    functions of C are bound to is none of Python's.
    """
    if type(holder) is types.CellType:
        return ("cell_contents", holder.cell_contents) if is_filled(holder) else None
    if type(holder) not in _BOUND:
        return None
    held = holder.__self__
    is_named = isinstance(held, type | types.ModuleType) or is_scalar(held)
    return None if is_named or type(held).__name__ == "PyCapsule" else ("__self__", held)


def gets_any(thing: Any) -> bool:
    """Whether a thing is an object's ``__getattribute__``, which gets attributes by text."""
    return type(thing) is types.MethodWrapperType and thing.__name__ == "__getattribute__"
