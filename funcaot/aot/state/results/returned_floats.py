"""Floats that a captured function reads off tensors and returns: each call returns its own.

``state_tracker`` puts tensors in their places, and ``state_effects`` puts the numbers back.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from funcaot._torch.tensors.sizes.number_tensors import plain
from funcaot._torch.tensors.sizes.read_floats import is_read

__all__ = ["Path", "read_off", "with_floats"]

Path = tuple[Any, ...]
_DEEPEST = 8


def read_off(
    result: Any, is_old: Callable[[Any], bool], depth: int = 0
) -> tuple[Any, tuple[Path, ...]]:
    """A result with tensors in place of such numbers, and where they are.

    A number elsewhere, as in an object, in a container that was there before or deep inside, is
    left: it is read, and the program is for its value.

    Args:
        result: What the function returned; a new list or dictionary is changed in place.
        is_old: Whether a container was there before.
        depth: How many containers it is in.
    """
    if is_read(result):
        return result.tensor(), ((),)
    kind = type(result)
    if depth > _DEEPEST or kind not in (tuple, list, dict) or is_old(result):
        return result, ()
    items = result.items() if kind is dict else enumerate(result)
    found = {key: read_off(item, is_old, depth + 1) for key, item in [*items]}
    paths = tuple((key, *path) for key, (_, inside) in found.items() for path in inside)
    if not paths:
        return result, ()
    if kind is tuple:
        return tuple(item for item, _ in found.values()), paths
    for key, (item, _) in found.items():
        result[key] = item
    return result, paths


def with_floats(result: Any, paths: tuple[Path, ...]) -> Any:
    """The result of a call, with its own floats."""
    for path in paths:
        result = _with_float(result, path)
    return result


def _with_float(result: Any, path: Path) -> Any:
    if not path:
        return plain(result, float)
    key, rest = path[0], path[1:]
    item = _with_float(result[key], rest)
    if isinstance(result, tuple):
        return (*result[:key], item, *result[key + 1 :])
    result[key] = item
    return result
