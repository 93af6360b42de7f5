"""Objects among the metadata of wrappers: when two of them are alike, for ``metadata``.

A class's own ``__eq__`` may overlook a field that a program reads, and take numbers of two types
for one. So the fields are compared, too: what they tell apart is another program, and nothing more.
"""

from __future__ import annotations

import copy
from collections.abc import Hashable, Iterator
from typing import Any

import torch

from funcaot.rules.operands.reached import held_in_slots

__all__ = ["BY_VALUE", "Same", "identified", "is_torchs", "never_changes"]

BY_VALUE = (type(None), bool, int, str, bytes, torch.dtype, torch.device, torch.layout)
# How deep the fields of fields are looked at; below that an object's own equality counts.
_DEPTH = 4
_OF_CONTAINERS = (dict.__eq__, list.__eq__, tuple.__eq__, set.__eq__, frozenset.__eq__)


class _Compared:
    """A value that compares by its class's own equality."""

    __slots__ = ("number", "value")

    def __init__(self, value: Any) -> None:
        try:
            self.number = hash(value)
            self.value = value
        except TypeError:
            self.number = hash(type(value))
            self.value = copy.copy(value)  # Its fields may be assigned later.

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, _Compared):
            return False
        if self.value is other.value:
            return True
        try:
            return bool(self.value == other.value)
        except Exception:  # noqa: BLE001 (of the user's class, or of tensors in its fields)
            return False

    def __hash__(self) -> int:
        return self.number


class Same:
    """A value that only itself is the same as.

    Attributes:
        value: The value.
    """

    __slots__ = ("value",)

    def __init__(self, value: Any) -> None:
        """Hold the value, so that none that comes later has its ``id``.

        Args:
            value: The value.
        """
        self.value = value

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Same) and self.value is other.value

    def __hash__(self) -> int:
        return id(self.value)


def is_torchs(kind: type) -> bool:
    """Whether a class is torch's own, whose ``__eq__`` is trusted: its fields may be caches."""
    return kind.__module__.partition(".")[0] == "torch"


def identified(value: Any, depth: int = 0) -> Hashable:
    """An object as something that equals that of another one which no program can tell from it.

    Args:
        value: The object, or what one of its fields holds.
        depth: How deep in fields it lies.
    """
    kind = type(value)
    if kind in BY_VALUE:
        return kind, value
    if kind in (float, complex):
        # By its text nan is itself, and 0.0 isn't -0.0.
        return kind, repr(value)
    if kind.__eq__ is object.__eq__ or isinstance(value, torch.Tensor | type):
        return kind, Same(value)
    if is_torchs(kind) or depth > _DEPTH:
        return kind, _Compared(value)
    fields = tuple(_fields(value, depth))
    return (kind, fields) if _is_data(value) else (kind, _Compared(value), fields)


def _is_data(value: Any) -> bool:
    """Whether it is what it holds, and nothing else."""
    return type(value).__eq__ in _OF_CONTAINERS or _is_array(value)


def _is_array(value: Any) -> bool:
    return hasattr(value, "tobytes") and hasattr(value, "dtype")


def _fields(value: Any, depth: int) -> Iterator[Hashable]:
    """What an object holds: its attributes, in slots too, its items, or its text."""
    kind, empty = type(value), True
    if isinstance(value, dict):
        empty = False
        for item in value.items():
            yield tuple(identified(part, depth + 1) for part in item)
    elif isinstance(value, tuple | list):
        empty = False
        yield from (identified(item, depth + 1) for item in value)
    elif isinstance(value, set | frozenset):
        empty = False
        yield frozenset(identified(item, depth + 1) for item in value)
    for name, field in _attributes(value):
        empty = False
        yield name, identified(field, depth + 1)
    array: Any = value
    if _is_array(array):
        yield str(array.dtype), getattr(array, "shape", None), array.tobytes()
    elif empty and kind.__repr__ is not object.__repr__:
        yield repr(value)  # An equality in C may overlook something, as that of decimals does.


def _attributes(value: Any) -> Iterator[tuple[str, Any]]:
    yield from sorted(getattr(value, "__dict__", {}).items())
    yield from held_in_slots(value)


def never_changes(value: Any) -> bool:
    """Whether an object among metadata is `identified` alike as long as it is the same object."""
    kind = type(value)
    if isinstance(value, tuple):
        return not hasattr(value, "__dict__") and all(map(never_changes, value))
    if kind in BY_VALUE or kind in (float, complex) or kind.__eq__ is object.__eq__:
        return True
    return is_torchs(kind) and kind.__hash__ is not None
