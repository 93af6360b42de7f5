"""Which of the things that wrappers hold are one object: inner tensors, wrappers, metadata.

Programs may tell two equal objects apart: by handing the one or the other on, or by writing to one.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
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


def pattern_of(tensors: Iterable[Any], objects: Iterable[Any] = ()) -> tuple[int, ...]:
    """What some wrappers hold, as numbers: for each thing inside the first that is the same object.

    Args:
        tensors: Inputs of a call or tangents; plain tensors and None may be among them.
        objects: Others that things inside may be.
    """
    tensors = list(tensors)
    if not any(map(is_wrapper, tensors)):
        return ()
    held = [*objects]  # Alive: otherwise an id is used again.
    held += [thing for tensor in tensors if tensor is not None for thing in _held(tensor)]
    first: dict[int, int] = {}
    return tuple(first.setdefault(id(thing), index) for index, thing in enumerate(held))


def _held(tensor: torch.Tensor) -> Iterator[Any]:
    yield tensor
    for _, part in paths_inside(tensor) if is_wrapper(tensor) else ():
        yield part
    yield from (value for _, _, value in objects_inside(tensor))


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
    found = [] if pair is None else [*objects_in(pair)]
    if len(found) == 1:  # what is named beside tensors, which is a container of ours
        return []
    again = dict(objects_in(metadata_of(tensor)))
    return [(keys, value) for keys, value in found if again.get(keys) is value]


def objects_in(value: Any, keys: Keys = ()) -> Iterator[tuple[Keys, Any]]:
    """The objects among metadata that are told from others like them, the outer ones first.

    Args:
        value: The metadata.
        keys: Where they stand in others.
    """
    kind = type(value)
    if kind in (dict, list) or not _is_told_by_its_value(kind):
        yield keys, value
    for key, item in items_of(value):
        yield from objects_in(item, (*keys, key))


def _is_told_by_its_value(kind: type) -> bool:
    """Whether nobody has to know which of two equal objects it is, or only itself is equal."""
    plain = kind in BY_VALUE or kind in (float, complex) or issubclass(kind, tuple)
    return plain or kind.__eq__ is object.__eq__ or is_torchs(kind)


def items_of(value: Any) -> list[tuple[Any, Any]]:
    """What a container of metadata holds, with the keys; nothing for another object."""
    if type(value) is dict:
        return list(value.items())
    return list(enumerate(value)) if isinstance(value, tuple | list) else []


def item_at(value: Any, keys: Keys) -> Any:
    """What some keys lead to in metadata."""
    for key in keys:
        value = value[key]
    return value
