"""Objects among metadata that go from what comes in to what goes out: those of each call.

A class hands the objects that its tensors carry on to its results, so that ``y.settings`` is
``x.settings``. Two calls whose objects are alike run one program; each gets its own objects back.
A list or a dictionary that the class makes for a result is a new one in each call.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

import torch

from funcaot.aot.subclasses.alike import BY_VALUE, is_torchs
from funcaot.aot.subclasses.structure import Structure, inside, metadata_of, paths_inside

__all__ = ["Carried", "Origins", "origins_of"]

# Which item of the metadata, which item of that, and so on.
_Keys: TypeAlias = tuple[Any, ...]
# The position of a wrapper among what comes in, the attributes that lead to one inside, and keys.
_Place: TypeAlias = tuple[int, tuple[str, ...], _Keys]
Origins: TypeAlias = dict[int, _Place]


def origins_of(wrappers: Iterable[tuple[int, torch.Tensor]]) -> Origins:
    """Where each object among the metadata of what comes in is found, by ``id``.

    Args:
        wrappers: The wrappers that come in, with their positions.
    """
    found: Origins = {}
    for position, whole in wrappers:
        for path, wrapper in [((), whole), *paths_inside(whole)]:
            pair = metadata_of(wrapper)
            for keys, value in () if pair is None else _objects(pair, ()):
                found.setdefault(id(value), (position, path, keys))
    return found


def _objects(value: Any, keys: _Keys) -> Iterator[tuple[_Keys, Any]]:
    """The objects among metadata that are told from others like them, the outer ones first."""
    kind = type(value)
    if kind in (dict, list) or not _is_told_by_its_value(kind):
        yield keys, value
    for key, item in _items(value):
        yield from _objects(item, (*keys, key))


def _is_told_by_its_value(kind: type) -> bool:
    """Whether nobody has to know which of two equal objects it is, or only itself is equal."""
    plain = kind in BY_VALUE or kind in (float, complex) or issubclass(kind, tuple)
    return plain or kind.__eq__ is object.__eq__ or is_torchs(kind)


def _items(value: Any) -> list[tuple[Any, Any]]:
    if type(value) is dict:
        return list(value.items())
    return list(enumerate(value)) if isinstance(value, tuple | list) else []


@dataclass(frozen=True, eq=False)
class Carried:
    """Which objects a wrapper's metadata take from what comes in.

    Attributes:
        places: For each of these objects by its keys, where it is found in a call.
    """

    places: dict[_Keys, _Place]

    @staticmethod
    def by(structure: Structure, origins: Origins) -> Carried | None:
        """What the metadata of a wrapper that goes out take; None if nothing is told apart."""
        objects = list(_objects(structure.context.pair, ()))
        places = {keys: origins[id(value)] for keys, value in objects if id(value) in origins}
        # The outermost dictionary is one of ours.
        made = any(type(value) in (dict, list) for keys, value in objects if len(keys) > 1)
        outermost = type(structure.context.pair[0]) in (dict, list)
        return Carried(places) if places or made or outermost else None

    def __call__(self, pair: Any, given: Sequence[Any], again: dict[Any, Any]) -> Any:
        """The metadata with the objects of a call.

        Args:
            pair: Metadata, and what else is named without being a tensor.
            given: What comes in.
            again: What has been made in this call already.
        """
        return self._made(pair, (), given, again)

    def _made(self, value: Any, keys: _Keys, given: Sequence[Any], again: dict[Any, Any]) -> Any:
        if keys in self.places:
            position, path, found = self.places[keys]
            whole: Any = again.get((position, path))
            if whole is None:
                whole = again[position, path] = metadata_of(inside(given[position], path))
            for key in found:
                whole = whole[key]
            return whole
        known = again.get(("metadata", id(value)))
        if known is not None:
            return known
        items = {key: self._made(item, (*keys, key), given, again) for key, item in _items(value)}
        if type(value) is dict:
            made: Any = items
        elif type(value) is list:
            made = list(items.values())
        elif isinstance(value, tuple) and any(items[i] is not v for i, v in enumerate(value)):
            kind: Any = type(value)
            made = kind(*items.values()) if hasattr(value, "_fields") else kind(items.values())
        else:
            return value
        again["metadata", id(value)] = made
        return made
