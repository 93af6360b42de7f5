"""Which of the things that wrappers hold are one object: inner tensors, wrappers, metadata.

Programs may tell two equal objects apart: by handing the one or the other on, or by writing to one.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from functools import lru_cache
from typing import Any, TypeAlias

import torch

from funcaot.aot.subclasses.alike import BY_VALUE, is_torchs
from funcaot.aot.subclasses.structure import is_wrapper, metadata_of, paths_inside

__all__ = [
    "Keys",
    "item_at",
    "items_of",
    "kept_objects",
    "objects_in",
    "objects_inside",
    "pattern_of",
]

# Which item of the metadata, which item of that, and so on.
Keys: TypeAlias = tuple[Any, ...]


def pattern_of(
    tensors: Iterable[Any], others: Callable[[], Iterable[Any]] = tuple
) -> tuple[int, ...]:
    """What some wrappers hold, as numbers: for each thing inside the first that is the same object.

    Args:
        tensors: Inputs of a call or tangents; plain tensors and None may be among them.
        others: Gives further objects, which those among the metadata may be.
    """
    given = [tensor for tensor in tensors if tensor is not None]
    if not any(map(is_wrapper, given)):
        return ()
    objects = [value for tensor in given for _, _, value in objects_inside(tensor)]
    held = [*others(), *objects] if objects else []  # Alive: otherwise an id is used again.
    for tensor in given:
        held.append(tensor)
        if is_wrapper(tensor):
            held += [part for _, part in paths_inside(tensor)]
    first: dict[int, int] = {}
    return tuple(first.setdefault(id(thing), index) for index, thing in enumerate(held))


def objects_inside(tensor: Any) -> list[tuple[tuple[str, ...], Keys, Any]]:
    """The `kept_objects` of a wrapper and of those inside, with the attributes that lead there."""
    if not is_wrapper(tensor):
        return []
    inside = [((), tensor), *paths_inside(tensor)]
    return [(path, *found) for path, part in inside for found in kept_objects(part)]


def kept_objects(tensor: torch.Tensor) -> list[tuple[Keys, Any]]:
    """The objects among a wrapper's metadata that it holds, which are told from others like them.

    A container that its class makes whenever it is asked is none of them.
    """
    pair = metadata_of(tensor)
    found = [] if pair is None else objects_in(pair)
    if len(found) == 1:  # what is named beside tensors, which is a container of ours
        return []
    again = dict(objects_in(metadata_of(tensor)))
    return [(keys, value) for keys, value in found if again.get(keys) is value]


def objects_in(value: Any, keys: Keys = ()) -> list[tuple[Keys, Any]]:
    """The objects among metadata that are told from others like them, the outer ones first.

    Args:
        value: The metadata.
        keys: Where they stand in others.
    """
    found: list[tuple[Keys, Any]] = []
    _collect(value, keys, found)
    return found


def _collect(value: Any, keys: Keys, found: list[tuple[Keys, Any]]) -> None:
    """Each call and each backward with a wrapper comes here: numbers and the like cost a look."""
    kind = type(value)
    if kind in (dict, list) or not _is_told_by_its_value(kind):
        found.append((keys, value))
    items = value.items() if kind is dict else enumerate(value) if _is_sequence(value) else ()
    for key, item in items:
        if type(item) not in _WITHOUT_PARTS:
            _collect(item, (*keys, key), found)


def _is_sequence(value: Any) -> bool:
    return isinstance(value, tuple | list)


_WITHOUT_PARTS = frozenset((*BY_VALUE, float, complex))


@lru_cache(maxsize=256)
def _is_told_by_its_value(kind: type) -> bool:
    """Whether nobody has to know which of two equal objects it is, or only itself is equal."""
    plain = kind in _WITHOUT_PARTS or issubclass(kind, tuple)
    return plain or kind.__eq__ is object.__eq__ or is_torchs(kind)


def items_of(value: Any) -> list[tuple[Any, Any]]:
    """What a container of metadata holds, with the keys; nothing for another object."""
    if type(value) is dict:
        return list(value.items())
    return list(enumerate(value)) if _is_sequence(value) else []


def item_at(value: Any, keys: Keys) -> Any:
    """What some keys lead to in metadata."""
    for key in keys:
        value = value[key]
    return value
