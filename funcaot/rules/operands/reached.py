"""Tensors inside of objects and functions, where no level and no tape can unwrap them."""

from __future__ import annotations

import functools
import gc
import types
from collections import deque
from collections.abc import Iterable, Iterator
from enum import Enum
from typing import Any

import torch

__all__ = ["held_in_slots", "is_filled", "may_hold", "reached_from", "tensors_reached"]

_DEPTH = 4
_FIXED = (type, types.ModuleType, torch.dtype, torch.device, torch.Size, Enum, str, int, float)
# What leads on to what it was made of, and isn't an object of its own.
_LINKS = (types.FunctionType, types.MethodType, functools.partial, list, tuple, dict)
# What only Python's collector of garbage looks into.
_CLOSED = (types.BuiltinMethodType, types.MappingProxyType, Iterator)


def may_hold(value: Any) -> bool:
    """Whether there may be tensors inside of a value."""
    return value is not None and not isinstance(value, _FIXED)


def tensors_reached(values: Iterable[Any]) -> Iterator[torch.Tensor]:
    """Tensors that objects hold and functions close over; a module's all.

    Objects in objects are looked at a few steps deep; what functions lead to is looked at all.
    """
    return _held(values, _DEPTH, set())


def _held(values: Any, depth: int, seen: set[int]) -> Iterator[torch.Tensor]:
    """Tensors that objects and functions reach."""
    for value in values:
        if isinstance(value, torch.Tensor):
            yield value
            continue
        if id(value) in seen or depth == 0 or not may_hold(value):
            continue
        seen.add(id(value))
        yield from _held(reached_from(value), depth - (not isinstance(value, _LINKS)), seen)


def reached_from(value: Any) -> list[Any]:
    """What a function closes over, an object or a container holds."""
    if isinstance(value, types.MethodType):
        return [value.__self__, value.__func__]
    if isinstance(value, functools.partial):
        return [value.func, *value.args, *value.keywords.values()]
    if isinstance(value, types.FunctionType):
        cells = [cell.cell_contents for cell in value.__closure__ or () if is_filled(cell)]
        defaults = (value.__defaults__ or (), (value.__kwdefaults__ or {}).values())
        return [*cells, *defaults[0], *defaults[1]]
    if isinstance(value, _CLOSED) and not hasattr(value, "__dict__"):
        return gc.get_referents(value)
    found: list[Any] = []
    if isinstance(value, dict):
        found += dict.values(value)
    elif isinstance(value, (list, tuple, set, frozenset, deque)):
        found += value
    fields = getattr(value, "__dict__", None)
    found += fields.values() if isinstance(fields, dict) else ()
    found += [item for _, item in held_in_slots(value)]
    if isinstance(value, torch.nn.Module):
        found += [*value.parameters(), *value.buffers()]
    return found


def held_in_slots(value: Any) -> Iterator[tuple[str, Any]]:
    """What is in the slots of an object, with their names."""
    for base in type(value).__mro__:
        slots = base.__dict__.get("__slots__", ())
        for name in (slots,) if isinstance(slots, str) else tuple(slots):
            if name not in ("__dict__", "__weakref__") and hasattr(value, name):
                yield name, getattr(value, name)


def is_filled(cell: types.CellType) -> bool:
    """Whether a cell's variable was assigned."""
    try:
        cell.cell_contents  # noqa: B018
    except ValueError:
        return False
    return True
