"""Containers among a call's arguments: a capture works on copies of them."""

from __future__ import annotations

from collections import OrderedDict, defaultdict, deque
from collections.abc import Iterable, Iterator
from typing import Any, TypeAlias

from funcaot._torch.tensors.pytree import is_registered, tree_flatten, tree_unflatten
from funcaot.aot.closure.children import items_of
from funcaot.aot.closure.constants import is_setting
from funcaot.aot.state.state import MISSING, Bag, changed_keys, fill, is_same, put

Path: TypeAlias = tuple[Any, ...]


class _Plain:
    """An object that keeps what it holds in attributes."""


class _Attributes:
    """A step of a path: from an object to the dictionary of its attributes."""


ATTRIBUTES = _Attributes()
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
        if has_attributes(type(value)):
            yield from _within(vars(value), (*path, ATTRIBUTES))


def has_attributes(kind: type) -> bool:
    """Whether objects of a class that is registered keep what they hold in attributes alone."""
    return kind.__basicsize__ == _Plain.__basicsize__ and kind.__dictoffset__ != 0


def is_own(thing: Any) -> bool:
    """Whether a container is of a type that isn't Python's."""
    return type(thing) not in _MUTABLE


def parts(thing: Any) -> tuple[Any, ...]:
    """What a container of another type consists of."""
    leaves, tree = tree_flatten(thing)
    return (*leaves, tree)


def says_changes(thing: Any, before: tuple[Any, ...], bags: Iterable[tuple[Path, Bag]]) -> bool:
    """Whether a container is what it was, but for what has changed in things in it.

    Args:
        thing: The container.
        before: The parts that it had.
        bags: Dictionaries and lists in it, with their paths from it.
    """
    fresh = tree_unflatten(list(before[:-1]), before[-1])
    for path, bag in bags:
        if _is_at(thing, path, bag.thing):
            _repeat(bag, find(fresh, path))
    return are_same(parts(thing), parts(fresh))


def _repeat(bag: Bag, other: Any) -> None:
    """Change another thing as one was changed; what stayed in the one stays in the other."""
    now = bag.now()
    if not isinstance(now, dict):
        if not is_same([*now], [*bag.before]):
            fill(other, now)
        return
    for key in changed_keys(bag):
        put(other, key, now.get(key, MISSING))


def _is_at(call: Any, path: Path, thing: Any) -> bool:
    """Whether a thing is still where it was, and not another one."""
    try:
        return find(call, path) is thing
    except (KeyError, IndexError, TypeError):
        return False


def are_same(first: tuple[Any, ...], second: tuple[Any, ...]) -> bool:
    """Whether parts are the same objects, or equal settings."""
    return len(first) == len(second) and all(
        a is b or (is_setting(a) and a == b) for a, b in zip(first[:-1], second[:-1], strict=True)
    )


def find(call: Any, path: Path) -> Any:
    """The container at a path."""
    for key in path:
        call = vars(call) if key is ATTRIBUTES else call[key]
    return call


def text(path: Path) -> str:
    """``args[0]['k']`` style, with attributes as ``args[0].name``."""
    first, *rest = path
    found, before = ("args", "kwargs")[first], None
    for key in rest:
        if key is not ATTRIBUTES:
            found += f".{key}" if before is ATTRIBUTES else f"[{key!r}]"
        before = key
    return found
