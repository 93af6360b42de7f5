"""What ``__tensor_flatten__`` says of a wrapper besides its tensors, as something that compares."""

from __future__ import annotations

import copy
from collections.abc import Hashable
from typing import Any

import torch

from funcaot.errors import UnsupportedError

__all__ = ["frozen"]

_BY_VALUE = (type(None), bool, int, str, bytes, torch.dtype, torch.device, torch.layout)


class _Compared:
    """A value that compares, but has no hash."""

    __slots__ = ("value",)

    def __init__(self, value: Any) -> None:
        self.value = value

    def __eq__(self, other: object) -> bool:
        return isinstance(other, _Compared) and bool(self.value == other.value)

    def __hash__(self) -> int:
        return hash(type(self.value))


class _Same:
    """A value without an equality of its own: only itself is the same."""

    __slots__ = ("value",)

    def __init__(self, value: Any) -> None:
        self.value = value

    def __eq__(self, other: object) -> bool:
        return isinstance(other, _Same) and self.value is other.value

    def __hash__(self) -> int:
        return id(self.value)


def frozen(value: Any, owner: type) -> Hashable:
    """A value that equals that of another wrapper only if a program can't tell the two apart.

    Args:
        value: The second result of ``__tensor_flatten__``, or a part of it.
        owner: The wrapper's class, for messages.

    Raises:
        UnsupportedError: If there is a tensor in it.
    """
    kind = type(value)
    if kind in _BY_VALUE:
        return kind, value
    if kind in (float, complex):
        # By its text nan is itself, and 0.0 isn't -0.0.
        return kind, repr(value)
    if isinstance(value, torch.Tensor):
        raise UnsupportedError(
            f"{owner.__name__}.__tensor_flatten__ gives a tensor as metadata, which a program "
            "would keep from the call that it was made in.",
            remedy="name it among the inner tensors.",
        )
    if isinstance(value, tuple | list):
        return kind, tuple(frozen(item, owner) for item in value)
    if kind is dict:
        items = ((frozen(key, owner), frozen(item, owner)) for key, item in value.items())
        return kind, frozenset(items)
    if kind.__eq__ is object.__eq__:
        return kind, _Same(value)
    try:
        hash(value)
    except TypeError:
        return kind, _Compared(copy.copy(value))  # Its fields may be assigned later.
    return kind, value
