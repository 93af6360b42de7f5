"""Containers among a call's arguments: a capture works on copies of them."""

from __future__ import annotations

from collections import OrderedDict, defaultdict, deque
from collections.abc import Iterator
from typing import Any, TypeAlias

from funcaot._torch.tensors.pytree import is_registered, tree_flatten
from funcaot.aot.closure.children import items_of

Path: TypeAlias = tuple[Any, ...]
_MUTABLE = (list, dict, OrderedDict, defaultdict, deque)


def containers(call: Any) -> Iterator[tuple[Path, Any]]:
    """The containers in ``(args, kwargs)`` that the caller can see change, with their paths."""
    args, kwargs = call
    for index, value in enumerate(args):
        yield from _within(value, (0, index))
    for name, value in kwargs.items():
        yield from _within(value, (1, name))


def _within(value: Any, path: Path) -> Iterator[tuple[Path, Any]]:
    if type(value) in _MUTABLE:
        yield path, value
    if isinstance(value, dict) and type(value) in _MUTABLE:
        for key, item in value.items():
            yield from _within(item, (*path, key))
    elif type(value) in (list, deque) or isinstance(value, tuple):
        for index, item in enumerate(items_of(value)):
            yield from _within(item, (*path, index))
    elif is_registered(type(value)):
        yield path, value


def is_own(thing: Any) -> bool:
    """Whether a container is of a type that isn't Python's."""
    return type(thing) not in _MUTABLE


def parts(thing: Any) -> tuple[Any, ...]:
    """What a container of another type consists of."""
    leaves, tree = tree_flatten(thing)
    return (*leaves, tree)


def find(call: Any, path: Path) -> Any:
    """The container at a path."""
    for key in path:
        call = call[key]
    return call


def text(path: Path) -> str:
    """``args[0]['k']`` style."""
    first, *rest = path
    return ("args", "kwargs")[first] + "".join(f"[{key!r}]" for key in rest)
