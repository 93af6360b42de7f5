"""Objects among metadata that go from what comes in to what goes out: those of each call.

A class hands the objects that its tensors carry on to its results, so that ``y.settings`` is
``x.settings``. Two calls whose objects are alike run one program; each gets its own objects back.
A list, a dictionary or another object that can change, which the class makes for a result, is a new
one in each call.
"""

from __future__ import annotations

import contextlib
import copy
import gc
import threading
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from types import CellType
from typing import Any, TypeAlias

import torch

from funcaot.aot.subclasses.alike import is_torchs
from funcaot.aot.subclasses.identity import Keys, item_at, items_of, objects_in, objects_inside
from funcaot.aot.subclasses.structure import Structure, inside, metadata_of, paths_inside
from funcaot.base.scopes import holding

__all__ = ["OF_THIS_CALL", "Brought", "Carried", "Origins", "given_objects", "origins_of"]

# The position of a wrapper among what comes in, the attributes that lead to one inside, and keys.
_Place: TypeAlias = tuple[int, tuple[str, ...], Keys]
Origins: TypeAlias = dict[int, _Place]


class _OfThisCall(threading.local):
    """Objects that a call in progress was given, for what is made in it and in its backwards.

    Attributes:
        objects: As `Brought` lists them.
    """

    objects: tuple[Any, ...] = ()


OF_THIS_CALL = _OfThisCall()
_NONE_GIVEN = contextlib.nullcontext()


def given_objects(objects: tuple[Any, ...]) -> contextlib.AbstractContextManager[None]:
    """While a call that was given these is in progress, or a backward of it."""
    return holding(OF_THIS_CALL, objects=objects) if objects else _NONE_GIVEN


class Brought:
    """The objects among the metadata of a call's inputs."""

    def __init__(self) -> None:
        """Know none yet."""
        self._found: dict[int, tuple[int, Any, Any, tuple[str, ...], Keys]] = {}

    def note(self, wrapper: torch.Tensor, owner: Any) -> None:
        """Read those of an input.

        Args:
            wrapper: The input.
            owner: What it is on the tape.
        """
        for path, keys, value in objects_inside(wrapper):
            self._found.setdefault(id(value), (len(self._found), value, owner, path, keys))

    def places(self, structure: Structure) -> dict[Keys, int]:
        """Which of them some metadata hold, by their keys."""
        if not self._found:
            return {}
        objects = objects_in(structure.context.pair)
        return {keys: self._found[id(v)][0] for keys, v in objects if id(v) in self._found}

    def given_by(
        self, slots: Sequence[Any], tensors: Sequence[torch.Tensor]
    ) -> contextlib.AbstractContextManager[None]:
        """While a call is in progress.

        Args:
            slots: Its inputs on the tape.
            tensors: The inputs, and others after them.
        """
        if not self._found:
            return _NONE_GIVEN
        inputs = {slot.node: tensor for slot, tensor in zip(slots, tensors, strict=False)}
        return given_objects(
            tuple(
                item_at(metadata_of(inside(inputs[owner], path)), keys)
                for _, _, owner, path, keys in self._found.values()
            )
        )


def origins_of(wrappers: Iterable[tuple[int, torch.Tensor]]) -> Origins:
    """Where each object among the metadata of what comes in is found, by ``id``.

    Args:
        wrappers: The wrappers that come in, with their positions.
    """
    found: Origins = {}
    for position, whole in wrappers:
        for path, wrapper in [((), whole), *paths_inside(whole)]:
            pair = metadata_of(wrapper)
            for keys, value in () if pair is None else objects_in(pair):
                found.setdefault(id(value), (position, path, keys))
    return found


_NOTHING: Mapping[Keys, int] = {}


@dataclass(frozen=True, eq=False)
class Carried:
    """Which objects a wrapper's metadata take from what comes in, and which are new in each call.

    Attributes:
        places: For each of these objects by its keys, where it is found among what comes in, or
            which of those it is that the call was given.
        constants: The ``id`` of each object that can change and that is the same in all calls.
    """

    places: dict[Keys, _Place | int]
    constants: frozenset[int] = frozenset()

    @staticmethod
    def by(
        structure: Structure, origins: Origins, brought: Mapping[Keys, int] = _NOTHING
    ) -> Carried | None:
        """What the metadata of a wrapper that goes out take; None if nothing is told apart.

        Args:
            structure: What it consists of.
            origins: Where objects are found among what comes in.
            brought: Those that the call was given.
        """
        objects = objects_in(structure.context.pair)
        found = {keys: origins[id(value)] for keys, value in objects if id(value) in origins}
        places: dict[Keys, _Place | int] = {**found, **brought}
        changing = [value for keys, value in objects if _changes(value) and keys != _OTHERS]
        if not (places or changing):
            return None
        known = {id(value) for keys, value in objects if keys in places}
        others = [value for value in changing if id(value) not in known]
        return Carried(places, frozenset(id(value) for value in others if _is_constant(value)))

    def __call__(self, pair: Any, given: Sequence[Any], again: dict[Any, Any]) -> Any:
        """The metadata with the objects of a call.

        Args:
            pair: Metadata, and what else is named without being a tensor.
            given: What comes in.
            again: What has been made in this call already.
        """
        return self._made(pair, (), given, again)

    def _made(self, value: Any, keys: Keys, given: Sequence[Any], again: dict[Any, Any]) -> Any:
        if keys in self.places:
            place = self.places[keys]
            if isinstance(place, int):
                return OF_THIS_CALL.objects[place]
            position, path, found = place
            whole: Any = again.get((position, path))
            if whole is None:
                whole = again[position, path] = metadata_of(inside(given[position], path))
            return item_at(whole, found)
        known = again.get(("metadata", id(value)))
        if known is not None:
            return known
        items = {key: self._made(item, (*keys, key), given, again) for key, item in items_of(value)}
        if type(value) is dict:
            made: Any = items
        elif type(value) is list:
            made = list(items.values())
        elif isinstance(value, tuple) and any(items[i] is not v for i, v in enumerate(value)):
            kind: Any = type(value)
            made = kind(*items.values()) if hasattr(value, "_fields") else kind(items.values())
        elif _changes(value) and id(value) not in self.constants:
            made = _another(value)
        else:
            return value
        again["metadata", id(value)] = made
        return made


# Where metadata hold what a class names among its inner tensors without its being a tensor.
_OTHERS = (1,)


def _changes(value: Any) -> bool:
    """Whether an object can become another value, and so can't be one for all calls."""
    kind = type(value)
    return kind.__hash__ is None and not is_torchs(kind)


def _is_constant(value: Any) -> bool:
    """Whether a module or a class holds an object, or a function does: no call has made it."""
    if type(value) in (dict, list):
        return False
    for owner in gc.get_referrers(value):
        if isinstance(owner, CellType):
            return True
        if isinstance(owner, dict) and ("__spec__" in owner or "__module__" in owner):
            return True
    return False


def _another(value: Any) -> Any:
    """Another object with equal fields; containers in them are others, too."""
    made = copy.copy(value)
    for name, field in list(getattr(made, "__dict__", {}).items()):
        if type(field) in (dict, list, set):
            object.__setattr__(made, name, copy.deepcopy(field))
    return made
