"""Numbers in what a captured function returns and stores: each call puts its own there.

``state_tracker`` puts tensors and plain numbers in their places, and ``state_effects`` puts the
numbers of a call back.
"""

from __future__ import annotations

import types
from collections.abc import Callable, Sequence
from typing import Any

import torch

from funcaot._torch.tensors.sizes.number_tensors import plain
from funcaot._torch.tensors.sizes.read_floats import is_read
from funcaot._torch.tensors.sizes.written_numbers import is_written
from funcaot.aot.closure.constants import is_scalar
from funcaot.aot.state.results.built_objects import attributes_of, base_of_object

__all__ = ["Path", "Written", "computed_in", "read_off", "with_computed", "with_floats"]

Path = tuple[Any, ...]
# Where a number is, and which of the numbers it is that Python computes in each call.
Written = tuple[Path, int]
_DEEPEST = 8
_WITH_ATTRIBUTES = (object, types.SimpleNamespace)


class Attribute(str):
    """A step of a path that is the name of an attribute."""

    __slots__ = ()


def read_off(values: Any, is_old: Callable[[Any], bool]) -> tuple[Any, tuple[Path, ...]]:
    """Values with tensors in place of floats that are read off tensors, and where they are.

    A number elsewhere, as in a container that was there before or deep inside, is left: it is
    read, and the program is for its value.

    Args:
        values: What the function returned or stored; new lists, dictionaries and objects are
            changed in place.
        is_old: Whether a container was there before.
    """
    return _Replacing(is_old, is_read, lambda number: number.tensor()).at(values, 0)


def computed_in(
    values: Any, is_old: Callable[[Any], bool], which: Callable[[Any], int]
) -> tuple[Any, tuple[Written, ...]]:
    """The same with plain numbers in place of those that Python computes in each call.

    Args:
        values: What the function returned or stored.
        is_old: Whether a container was there before.
        which: Gives the place of a number among those that are computed.
    """
    found: list[int] = []

    def replacement(number: Any) -> Any:
        found.append(which(number))
        return number.value

    values, paths = _Replacing(is_old, is_written, replacement).at(values, 0)
    return values, tuple(zip(paths, found, strict=True))


class _Replacing:
    """Puts something else in the place of numbers, and says where."""

    def __init__(
        self,
        is_old: Callable[[Any], bool],
        counts: Callable[[Any], bool],
        replacement: Callable[[Any], Any],
    ) -> None:
        self._is_old, self._counts, self._replacement = is_old, counts, replacement
        self._seen: dict[int, Any] = {}

    def at(self, value: Any, depth: int) -> tuple[Any, tuple[Path, ...]]:
        """The value with what replaces its numbers, and the paths to these."""
        if self._counts(value):
            return self._replacement(value), ((),)
        if depth > _DEEPEST or is_scalar(value) or id(value) in self._seen or self._is_old(value):
            return value, ()
        self._seen[id(value)] = value
        found = {key: self.at(item, depth + 1) for key, item in _parts(value)}
        paths = tuple((key, *path) for key, (_, inside) in found.items() for path in inside)
        if not paths:
            return value, ()
        if isinstance(value, tuple):
            return tuple.__new__(type(value), [item for item, _ in found.values()]), paths
        for key, (item, inside) in found.items():
            if inside:
                _set(value, key, item)
        return value, paths


def _parts(value: Any) -> list[tuple[Any, Any]]:
    """What is in a container or an object, with the steps that lead there."""
    kind = type(value)
    if kind is dict:
        return [*value.items()]
    if kind in (list, tuple) or (isinstance(value, tuple) and kind.__bases__ == (tuple,)):
        return [*enumerate(value)]
    if isinstance(value, torch.Tensor) or base_of_object(value) not in _WITH_ATTRIBUTES:
        return []
    return [(Attribute(name), item) for name, item in attributes_of(value).items()]


def _set(value: Any, key: Any, item: Any) -> None:
    if type(key) is Attribute:
        object.__setattr__(value, key, item)
    else:
        value[key] = item


def with_floats(values: Any, paths: tuple[Path, ...]) -> Any:
    """What a call returns and stores, with its own floats."""
    for path in paths:
        values = _put(values, path, lambda tensor: plain(tensor, float))
    return values


def with_computed(values: Any, places: tuple[Written, ...], numbers: Sequence[Any]) -> Any:
    """The same with the numbers that Python computed in the call."""
    for path, which in places:
        values = _put(values, path, lambda _, number=numbers[which]: number)
    return values


def _put(value: Any, path: Path, make: Callable[[Any], Any]) -> Any:
    if not path:
        return make(value)
    key, rest = path[0], path[1:]
    if type(key) is Attribute:
        _set(value, key, _put(getattr(value, key), rest, make))
        return value
    item = _put(value[key], rest, make)
    if isinstance(value, tuple):
        return tuple.__new__(type(value), (*value[:key], item, *value[key + 1 :]))
    value[key] = item
    return value
