"""New objects that hold no tensors, such as counters; ``built_objects`` asks.

Each call hands back one of its own. One that something keeps besides, such as a library's registry
or ``lru_cache``, is the same one in every call.
"""

from __future__ import annotations

import enum
import gc
import threading
import types
import weakref
from collections.abc import Iterable, Sequence
from typing import Any

from torch.utils.hooks import RemovableHandle

from funcaot._torch.tracing import tracing
from funcaot.aot.closure.lazy import holds_traced
from funcaot.aot.closure.look import dictionary_of
from funcaot.aot.closure.walk import scan
from funcaot.aot.state.results.recipes import Recipe
from funcaot.classes.addresses import Address

__all__ = ["OF_ONE_CALL", "held_elsewhere", "own_ways", "recipe_of_library"]

# What belongs to one call: ``effects.aliases`` refuses to return or keep it.
OF_ONE_CALL = (RemovableHandle, Address)

# What names one thing only, wherever it is met.
_NAMED = (
    type,
    enum.Enum,
    types.ModuleType,
    types.FunctionType,
    types.BuiltinFunctionType,
    types.CodeType,
    types.GenericAlias,
    types.UnionType,
    weakref.ref,
)
_LOCKS = {type(make()): make for make in (threading.Lock, threading.RLock)}
_WEAK = (weakref.WeakValueDictionary, weakref.WeakKeyDictionary)
# Nobody but the capture's own work holds on to a value by these.
_PASSING = (types.FrameType, types.GeneratorType)


def own_ways(kind: type) -> bool:
    """Whether a class says itself what its objects are made of, or it is known here."""
    if kind in (*_LOCKS, *_WEAK):
        return True
    ways = ("__reduce__", "__reduce_ex__", "__getstate__")
    return any(way in vars(base) for base in kind.__mro__[:-1] for way in ways)


def recipe_of_library(value: Any) -> Recipe | None:
    """How to make a new object of a library's class, as ``pickle`` and ``copy`` do.

    Returns:
        None for one that is the same for good, that says nothing of what it is made of, or that
        has a tensor of a capture in it.
    """
    kind = type(value)
    if kind in _LOCKS:
        return Recipe((), _LOCKS[kind])
    if kind in _WEAK:
        return Recipe((dict(value),), kind)
    if _is_bound(value):
        return Recipe((value.__self__, value.__name__), getattr)
    if isinstance(value, _NAMED) or _hides_traced(value):
        return None
    try:
        reduced = value.__reduce_ex__(4)
    except Exception:  # noqa: BLE001 - a library's own code says that it can't, as it likes
        return None
    if not isinstance(reduced, tuple) or len(reduced) not in (2, 3, 4, 5):
        return None
    make, arguments, *more = reduced
    state, items, pairs = (*more, *[None] * (3 - len(more)))
    contents = (state, [*(items or ())], [*(pairs or ())])
    return Recipe(tuple(arguments), make, contents, _fill)


def _is_bound(value: Any) -> bool:
    """Whether a value is a method, in C, of a new list, lock or the like."""
    if type(value) is not types.BuiltinMethodType or value.__self__ is None:
        return False
    return type(value.__self__) in (list, dict, set, *_LOCKS)


def _hides_traced(value: Any) -> bool:
    if holds_traced(value):
        return True
    return any(map(tracing.is_traced, scan(value).objects.values()))


def _fill(made: Any, state: Any, items: Iterable[Any], pairs: Iterable[Any]) -> None:
    if state is not None:
        _set_state(made, state)
    for item in items:
        made.append(item)
    for key, item in pairs:
        made[key] = item


def _set_state(made: Any, state: Any) -> None:
    if hasattr(made, "__setstate__"):
        made.__setstate__(state)
        return
    own, slots = state if isinstance(state, tuple) and len(state) == 2 else (state, None)
    made.__dict__.update(own or {})
    for name, value in (slots or {}).items():
        object.__setattr__(made, name, value)


def held_elsewhere(objects: Sequence[Any], walked: Sequence[Any]) -> frozenset[int]:
    """Which objects something holds that isn't a part of the value, by ``id``.

    Args:
        objects: New objects.
        walked: All that the value consists of, and lists that hold it for the while.
    """
    if not objects:
        return frozenset()
    held = _held(objects, walked)
    if held:
        gc.collect()  # What is only kept by a cycle that nobody holds is garbage.
        held = _held(objects, walked)
    return held


def _held(objects: Sequence[Any], walked: Sequence[Any]) -> frozenset[int]:
    known = {id(thing) for thing in walked} | {id(objects), id(walked)}
    known |= {id(dictionary_of(thing)) for thing in walked}
    mine = {id(thing) for thing in objects}
    held = set[int]()
    for holder in gc.get_referrers(*objects):
        if id(holder) not in known and not isinstance(holder, _PASSING):
            held |= mine & {id(thing) for thing in gc.get_referents(holder)}
    return frozenset(held)
