"""What an opaque Function hands on besides tensors: to its rules, or to whoever called it.

Such a value stands in the program as it was in the call that was captured. A run that gives another
one leaves the program, and calls of the Function aren't captured any more.
"""

from __future__ import annotations

import dataclasses
import functools
import types
from typing import Any

import torch

from funcaot.classes.class_cache import cache_of

__all__ = ["are_same", "change", "have_changed", "tells"]

_ATOMS = (str, bytes, range, torch.dtype, torch.device, torch.layout, torch.memory_format)
_NUMBERS = (int, float, complex, bool, slice)
_CHANGED = "gives other values"


def tells(value: Any) -> bool:
    """Whether there is something in a value that another call may have another of."""
    told = getattr(type(value), "told", None)
    if told is not None:
        return any(map(tells, told.fget(value)))
    return value is not None


def are_same(one: Any, other: Any) -> bool:
    """Whether a rule can't tell two values apart."""
    kind = type(one)
    if one is other:
        return True
    if kind is not type(other):
        return False
    if kind in _NUMBERS or kind.__module__ == "numpy":
        return _written(one) == _written(other)
    if kind in _ATOMS:
        return bool(one == other)
    if kind in (tuple, list, torch.Size):
        return len(one) == len(other) and all(map(are_same, one, other))
    if kind is dict:
        return are_same([*one], [*other]) and are_same([*one.values()], [*other.values()])
    if kind in (set, frozenset):
        return bool(one == other)
    if kind is types.FunctionType:
        parts = ("__code__", "__defaults__", "__kwdefaults__", "__closure__")
        return all(are_same(getattr(one, part), getattr(other, part)) for part in parts)
    if kind is types.CellType:
        return are_same(one.cell_contents, other.cell_contents)
    if kind is functools.partial:
        return are_same(one.__reduce__()[2], other.__reduce__()[2])
    if kind.__module__.startswith("funcaot.") and hasattr(kind, "is_same_as"):
        return bool(one.is_same_as(other))
    if dataclasses.is_dataclass(kind) and kind.__module__.startswith("funcaot."):
        names = [each.name for each in dataclasses.fields(kind)]
        return all(are_same(getattr(one, name), getattr(other, name)) for name in names)
    return kind.__name__ == "TreeSpec" and bool(one == other)


def _written(value: Any) -> Any:
    """A number, or an array, as text: ``nan`` equals itself, and ``0.0`` isn't ``-0.0``."""
    if not hasattr(value, "tobytes"):
        return repr(value)
    hidden = getattr(value.dtype, "hasobject", True)
    return object() if hidden else (value.dtype, value.shape, value.tobytes())


def change(function: type) -> None:
    """Note that a Function has given another value than before."""
    cache_of(function)[_CHANGED] = True


def have_changed(function: type) -> bool:
    """Whether a Function has given another value than before."""
    return _CHANGED in cache_of(function)
