"""Numbers in what a captured function returns and stores: each call puts its own there.

``state_tracker`` puts tensors and plain numbers in their places, and ``state_effects`` puts the
numbers of a call back.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from funcaot._torch.tensors.sizes.number_tensors import plain
from funcaot._torch.tensors.sizes.read_floats import is_read
from funcaot._torch.tensors.sizes.written_numbers import is_written

__all__ = ["Path", "Written", "computed_in", "read_off", "with_computed", "with_floats"]

Path = tuple[Any, ...]
# Where a number is, and which of the numbers it is that Python computes in each call.
Written = tuple[Path, int]
_DEEPEST = 8


def read_off(result: Any, is_old: Callable[[Any], bool]) -> tuple[Any, tuple[Path, ...]]:
    """A result with tensors in place of floats that are read off tensors, and where they are.

    A number elsewhere, as in an object, in a container that was there before or deep inside, is
    left: it is read, and the program is for its value.

    Args:
        result: What the function returned; a new list or dictionary is changed in place.
        is_old: Whether a container was there before.
    """
    return _replaced(result, is_old, is_read, lambda number: number.tensor(), 0)


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

    values, paths = _replaced(values, is_old, is_written, replacement, 0)
    return values, tuple(zip(paths, found, strict=True))


def _replaced(
    value: Any,
    is_old: Callable[[Any], bool],
    counts: Callable[[Any], bool],
    replacement: Callable[[Any], Any],
    depth: int,
) -> tuple[Any, tuple[Path, ...]]:
    if counts(value):
        return replacement(value), ((),)
    kind = type(value)
    if depth > _DEEPEST or kind not in (tuple, list, dict) or is_old(value):
        return value, ()
    items = value.items() if kind is dict else enumerate(value)
    found = {key: _replaced(item, is_old, counts, replacement, depth + 1) for key, item in [*items]}
    paths = tuple((key, *path) for key, (_, inside) in found.items() for path in inside)
    if not paths:
        return value, ()
    if kind is tuple:
        return tuple(item for item, _ in found.values()), paths
    for key, (item, _) in found.items():
        value[key] = item
    return value, paths


def with_floats(result: Any, paths: tuple[Path, ...]) -> Any:
    """The result of a call, with its own floats."""
    for path in paths:
        result = _put(result, path, lambda tensor: plain(tensor, float))
    return result


def with_computed(values: Any, places: tuple[Written, ...], numbers: Sequence[Any]) -> Any:
    """What a call returns and stores, with the numbers that Python computed in it."""
    for path, which in places:
        values = _put(values, path, lambda _, number=numbers[which]: number)
    return values


def _put(value: Any, path: Path, make: Callable[[Any], Any]) -> Any:
    if not path:
        return make(value)
    key, rest = path[0], path[1:]
    item = _put(value[key], rest, make)
    if isinstance(value, tuple):
        return (*value[:key], item, *value[key + 1 :])
    value[key] = item
    return value
