"""What ``__tensor_flatten__`` says of a wrapper besides its tensors, as something that compares.

Where it repeats the wrapper's own sizes and strides, that is said instead of the numbers: so
wrappers of other sizes have equal metadata, and the metadata are made for any sizes.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from funcaot._torch.tensors.classes.wrapping import names_of_functions
from funcaot._torch.tensors.sizes import shapes
from funcaot._torch.tensors.sizes.ragged import number_of, numbers_of
from funcaot.aot.subclasses.alike import BY_VALUE, identified
from funcaot.errors import UnsupportedError

__all__ = ["Outer", "frozen", "refuse_hidden_sizes", "resized"]

_NUMBERS = (int, torch.SymInt)
# How deep objects among the metadata are looked at for open sizes.
_DEPTH = 4


@dataclass(frozen=True, slots=True)
class Outer:
    """A wrapper's own sizes and strides, as numbers that compare."""

    shape: tuple[Any, ...]
    stride: tuple[Any, ...]

    @staticmethod
    def of(shape: Sequence[Any], stride: Sequence[Any]) -> Outer:
        """Read sizes and strides, open and ragged ones among them."""
        return Outer(numbers_of(shape), numbers_of(stride))

    def meant(self, numbers: Sequence[Any]) -> Sequence[str | tuple[str, int] | None]:
        """What each of some metadata's numbers repeats: all of them, one, or none."""
        found = numbers_of(numbers)
        for what in ("shape", "stride"):
            if found == getattr(self, what):
                return [(what, index) for index in range(len(found))]
        if len(found) != len(self.shape):
            return [None] * len(found)
        return [
            ("shape", index) if number == size and number != 1 and number != 0 else None
            for index, (number, size) in enumerate(zip(found, self.shape, strict=True))
        ]


def _is_sizes(value: Any) -> bool:
    """Whether it is a container of numbers that can be made again with others."""
    plain = type(value) in (tuple, list, torch.Size) or hasattr(value, "_fields")
    return plain and bool(value) and all(type(item) in _NUMBERS for item in value)


def frozen(value: Any, owner: type, outer: Outer) -> Hashable:
    """A value that equals that of another wrapper only if a program can't tell the two apart.

    Sizes and strides of the wrapper itself, which are compared elsewhere, may differ.

    Args:
        value: The second result of ``__tensor_flatten__``, or a part of it.
        owner: The wrapper's class, for messages.
        outer: The wrapper's sizes and strides.

    Raises:
        UnsupportedError: If there is a tensor in it.
    """
    kind = type(value)
    if kind in BY_VALUE:
        return identified(value)
    if isinstance(value, torch.Tensor):
        raise UnsupportedError(
            f"{names_of_functions(owner)[0]} gives a tensor as metadata, which a program "
            "would keep from the call that it was made in.",
            remedy="name it among the inner tensors.",
        )
    if _is_sizes(value):
        pairs = zip(outer.meant(value), numbers_of(value), strict=True)
        return kind, tuple(number if place is None else place for place, number in pairs)
    if isinstance(value, tuple | list):
        return kind, tuple(frozen(item, owner, outer) for item in value)
    if kind is dict:
        pairs = ((frozen(k, owner, outer), frozen(v, owner, outer)) for k, v in value.items())
        return kind, tuple(pairs)
    if kind is torch.SymInt:
        return int, number_of(value)
    return identified(value)


def resized(value: Any, outer: Outer, shape: Sequence[Any], stride: Sequence[Any]) -> Any:
    """Metadata for other sizes and strides of the wrapper.

    Args:
        value: The metadata, or a part of them.
        outer: The sizes and strides that they were read with.
        shape: The new sizes.
        stride: The new strides.
    """
    new = {"shape": shape, "stride": stride}

    def number(item: Any, place: Any) -> Any:
        return item if place is None else new[place[0]][place[1]]

    def made(part: Any) -> Any:
        if _is_sizes(part):
            pairs = zip(part, outer.meant(part), strict=True)
            return _like(part, [number(item, place) for item, place in pairs])
        return _mapped(part, made)

    return made(value)


def _mapped(value: Any, change: Callable[[Any], Any]) -> Any:
    if type(value) is dict:
        items = {key: change(item) for key, item in value.items()}
        return items if any(items[key] is not value[key] for key in items) else value
    if type(value) in (tuple, list) or (isinstance(value, tuple) and hasattr(value, "_fields")):
        items = [change(item) for item in value]
        changed = any(new is not old for new, old in zip(items, value, strict=True))
        return _like(value, items) if changed else value
    return value


def _like(value: Any, items: list[Any]) -> Any:
    kind = type(value)
    return kind(*items) if hasattr(value, "_fields") else kind(items)


def refuse_hidden_sizes(value: Any, owner: type, depth: int = 0) -> None:
    """Refuse metadata of a tape that hold open sizes otherwise than `resized` can change.

    Args:
        value: Metadata made for no particular sizes: what `resized` changes is gone from it.
        owner: The wrapper's class, for messages.
        depth: How deep inside of the metadata it lies.

    Raises:
        SizeError: If they do.
    """
    if isinstance(value, shapes.SYMBOLIC_NUMBERS) and not isinstance(number_of(value), int | str):
        raise shapes.SizeError(
            f"The metadata of a {owner.__name__} hold a number that is computed from its sizes.",
            remedy="compile with dynamic=False, or compute it where it is used.",
        )
    if isinstance(value, torch.Tensor | type) or type(value) in BY_VALUE or depth > _DEPTH:
        return
    if isinstance(value, dict):
        parts: Any = list(value.values())
    elif isinstance(value, tuple | list | set | frozenset):
        parts = value
    else:
        parts = list(getattr(value, "__dict__", {}).values())
    for part in parts:
        refuse_hidden_sizes(part, owner, depth + 1)
