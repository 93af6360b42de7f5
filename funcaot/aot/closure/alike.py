"""Objects in whose place another one of their class may stand; the signature and the reader ask.

A batch, a configuration, a cache that is made anew for each call is compared by its class and by
what is read of it, as a list is. Where code can tell which object it has, or a program keeps one
for itself, an object is compared by which one it is.
"""

from __future__ import annotations

import argparse
import enum
import functools
import gc
import types
import weakref
from collections import Counter
from collections.abc import Collection, Iterable, Iterator
from typing import Any

import torch

from funcaot.aot.closure.children import CONTAINERS, DICTIONARIES, SETS, WRAPPED, items_of
from funcaot.aot.closure.constants import is_scalar
from funcaot.aot.closure.environment import Environment, Walk
from funcaot.aot.closure.ran import is_users

__all__ = ["alike", "keys_in", "may_be_another", "reached_by"]

_HEAP = 1 << 9  # A class that a class statement made.
_OF_PYTHON = (types.SimpleNamespace, argparse.Namespace, *WRAPPED)
_BY_ALL = (types.SimpleNamespace, argparse.Namespace)
_NEVER = (torch.Tensor, torch.nn.Module, torch.optim.Optimizer, enum.Enum, type, *CONTAINERS)
# Code that names one of these sees which object it has.
_SEES_WHICH = ("id", "hash", "__hash__", "__reduce_ex__", "object_id")
# What is given to one of these runs later, with the objects of the capture.
_RUNS_LATER = (
    "register_hook",
    "register_prehook",
    "register_multi_grad_hook",
    "register_post_accumulate_grad_hook",
    "saved_tensors_hooks",
)
_DEPTH = 4


@functools.lru_cache(maxsize=4096)
def is_plain(kind: type) -> bool:
    """Whether all that objects of a class hold are attributes: nothing is hidden in C."""
    if issubclass(kind, _NEVER) or hasattr(kind, "__torch_function__"):
        return False
    if not issubclass(kind, _OF_PYTHON) and not is_users(kind):
        return False
    layout: type | None = kind
    while layout is not None and layout.__flags__ & _HEAP:
        layout = layout.__base__
    return layout is object or layout is types.SimpleNamespace


def may_be_another(value: Any) -> bool:
    """Whether another object of its class may stand in the place of one, as far as that says."""
    return is_plain(type(value))


def alike(environment: Environment, pinned: Collection[int], keys: Iterable[Any]) -> frozenset[int]:
    """The objects in whose place another one may stand, by ``id``.

    Args:
        environment: What the code that ran can have read.
        pinned: Objects that the program keeps for itself, by ``id``.
        keys: Keys of what the function changes and makes.
    """
    names = environment.names
    if names.users_mention_any(_SEES_WHICH) or names.users_mention_any(_RUNS_LATER):
        return frozenset()
    found = {i: thing for i, thing in environment.objects.items() if may_be_another(thing)}
    if not found:
        return frozenset()
    # A table knows an object by which one it is.
    looked_up = {type(key) for key in _within([*_keys_around(environment), *keys])}
    # Two of these are equal if all is that they hold, also what nobody names.
    kinds = Counter(type(thing) for thing in found.values() if isinstance(thing, _BY_ALL))
    looked_up.update(kind for kind, count in kinds.items() if count > 1)
    return frozenset(
        identity
        for identity, thing in found.items()
        if identity not in pinned and type(thing) not in looked_up
    )


def keys_in(value: Any, depth: int = _DEPTH) -> Iterator[Any]:
    """Keys of dictionaries, and items of sets, in a value."""
    if isinstance(value, DICTIONARIES):
        yield from items_of(value)
    elif isinstance(value, SETS):
        yield from items_of(value)
        return
    if depth and isinstance(value, CONTAINERS):
        inside = value.values() if isinstance(value, DICTIONARIES) else items_of(value)
        for item in inside:
            yield from keys_in(item, depth - 1)


def reached_by(called: Iterable[tuple[Any, ...]]) -> set[int]:
    """Objects that something reaches which runs later: rules of Functions, by ``id``.

    Args:
        called: For each its code, and what it was given besides tensors.
    """
    found: set[int] = set()
    for root in called:
        walk = Walk(root)
        walk.go()
        found.update(i for i, thing in walk.found.objects.items() if may_be_another(thing))
    return found


def _keys_around(environment: Environment) -> Iterator[Any]:
    for identity, thing in environment.objects.items():
        if identity in environment.namespaces:
            continue
        if isinstance(thing, (*DICTIONARIES, *SETS)):
            yield from items_of(thing)
        elif isinstance(thing, functools._lru_cache_wrapper):
            for kept in gc.get_referents(thing):
                if type(kept) is dict:
                    yield from kept


def _within(keys: Iterable[Any], depth: int = _DEPTH) -> Iterator[Any]:
    for key in keys:
        if is_scalar(key):
            continue
        yield key
        if isinstance(key, weakref.ref):
            yield key()
        elif depth and isinstance(key, tuple | list | frozenset):
            yield from _within(items_of(key), depth - 1)
