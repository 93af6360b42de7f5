"""Objects in whose place another one of their class may stand; the signature and the reader ask.

A batch, a configuration, a cache that is made anew for each call is compared by its class and by
what is read of it, as a list is. Where code can tell which object it has, or a program keeps one
for itself, an object is compared by which one it is.
"""

from __future__ import annotations

import builtins
import enum
import functools
import gc
import re
import types
import weakref
from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Sequence
from typing import Any

import torch

from funcaot.aot.closure.children import (
    BY_ALL,
    CONTAINERS,
    DICTIONARIES,
    SETS,
    WRAPPED,
    items_of,
    names_in,
)
from funcaot.aot.closure.constants import is_scalar
from funcaot.aot.closure.environment import Environment
from funcaot.aot.closure.hashing.hashed import ANY, name_of_kind
from funcaot.aot.closure.named.code_names import names_of
from funcaot.aot.closure.ran import is_plain_object
from funcaot.aot.closure.walk import Walk

__all__ = ["alike", "kept_in", "keys_in", "may_be_another", "reached_by"]

_HEAP = 1 << 9  # A class that a class statement made.
_OF_PYTHON = (*BY_ALL, *WRAPPED)
_NEVER = (torch.Tensor, torch.nn.Module, torch.optim.Optimizer, enum.Enum, type, *CONTAINERS)
_NEVER_IN, _OF_PYTHON_IN = frozenset(_NEVER), frozenset(_OF_PYTHON)
# Code that names one of these sees which object it has.
_SEES_WHICH = ("id", "hash", "__hash__", "__reduce_ex__", "object_id")
# The same under another name.
_SEEING = (id, hash, object.__hash__, object.__repr__, object.__str__)
_REPR = re.compile(" at 0x[0-9a-f]+")
# What is given to one of these runs later, with the objects of the capture.
_RUNS_LATER = (
    "register_hook",
    "register_prehook",
    "register_multi_grad_hook",
    "register_post_accumulate_grad_hook",
    "saved_tensors_hooks",
)
# Where one of these is kept, it is the one that is compared.
_WHOLE = (type, types.ModuleType, types.FunctionType, types.FrameType, torch.nn.Module)
_DEPTH = 4


def is_plain(kind: type) -> bool:
    """Whether all that objects of a class hold are attributes: nothing is hidden in C."""
    # A metaclass may make up attributes, so the classes themselves are looked at.
    takes_over = any("__torch_function__" in vars(each) for each in kind.__mro__)
    if takes_over or not _NEVER_IN.isdisjoint(kind.__mro__):
        return False
    if _OF_PYTHON_IN.isdisjoint(kind.__mro__) and not is_plain_object(kind):
        return False
    layout: type | None = kind
    while layout is not None and layout.__flags__ & _HEAP:
        layout = layout.__base__
    return layout is object or layout is types.SimpleNamespace


def may_be_another(value: Any) -> bool:
    """Whether another object of its class may stand in the place of one, as far as that says."""
    return is_plain(type(value))


def alike(
    environment: Environment,
    pinned: Collection[int],
    keys: Sequence[Any],
    told: Sequence[Any] = (),
) -> frozenset[int]:
    """The objects in whose place another one may stand, by ``id``.

    Args:
        environment: What the code that ran can have read.
        pinned: Objects that the program keeps for itself, by ``id``.
        keys: Keys of what the function changes and makes.
        told: Texts and numbers that it returns and stores.
    """
    if _sees_any(environment) or environment.names.users_mention_any(_RUNS_LATER):
        return frozenset()
    found = {i: thing for i, thing in environment.objects.items() if may_be_another(thing)}
    if not found or _is_seen_which(environment):
        return frozenset()
    # Where one is was made a number or a text.
    keys = [*_keys_around(environment), *keys]
    around = [*_scalars([*keys, *told])]
    around += _scalars([value for _, value in environment.settings])
    if any(type(text) is str and _REPR.search(text) for text in around):
        return frozenset()
    numbers = {number for number in around if type(number) is int}
    found = {
        i: thing
        for i, thing in found.items()
        if i not in numbers and object.__hash__(thing) not in numbers
    }
    # A table knows an object by which one it is.
    looked_up = {type(key) for key in _within(keys)}
    # Whether two of these are one decides before what they hold does.
    kinds = Counter(type(thing) for thing in found.values() if isinstance(thing, BY_ALL))
    looked_up.update(kind for kind, count in kinds.items() if count > 1)
    hashed = set() if environment.ran is None else environment.ran.hashed
    return frozenset(
        identity
        for identity, thing in found.items()
        if identity not in pinned
        and type(thing) not in looked_up
        and name_of_kind(type(thing)) not in hashed
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


def kept_in(values: Iterable[Any], depth: int = _DEPTH) -> Iterator[Any]:
    """Objects that a program keeps with what it returns and stores, where no call puts others.

    Args:
        values: What it keeps: constants of the user's, weak references, exceptions.
        depth: How many things to go through.
    """
    for value in values:
        if isinstance(value, torch.Tensor) or is_scalar(value):
            continue
        if may_be_another(value):
            yield value
        elif isinstance(value, weakref.ref):
            yield from kept_in([value()], depth)
        elif depth and not isinstance(value, _WHOLE):
            yield from kept_in(gc.get_referents(value), depth - 1)


def reached_by(called: Iterable[tuple[Any, ...]]) -> set[int]:
    """Objects that something was given which runs later: rules of Functions, by ``id``.

    What it finds among globals when it runs, no program keeps for it.

    Args:
        called: For each its code, and what it was given besides tensors.
    """
    found: set[int] = set()
    for root in called:
        walk = Walk(root, waits=True)
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


def _sees_any(environment: Environment) -> bool:
    """Whether code tells which object something is, and nothing shows what.

    Of a method ``__hash__`` it was seen what it hashes.
    """
    ran = environment.ran
    if ran is None:
        return environment.names.users_mention_any(_SEES_WHICH)
    seeing = [c for c in ran.users if not names_of(c).used.isdisjoint(_SEES_WHICH)]
    return ANY in ran.hashed or any(code.co_name != "__hash__" for code in seeing)


def _is_seen_which(environment: Environment) -> bool:
    """Whether code reaches what tells which object something is, by whatever name."""
    # Of Python's functions as a whole, code calls those that it names.
    python = (id(builtins), id(vars(builtins)))
    things = [thing for p, thing in environment.identities if p.parent not in python]
    return any(thing is seeing for thing in things for seeing in _SEEING) or any(
        name in _SEES_WHICH for thing in things for name in names_in(thing)
    )


def _scalars(values: Iterable[Any], depth: int = _DEPTH) -> Iterator[Any]:
    for value in values:
        if isinstance(value, CONTAINERS):
            if depth:
                yield from _scalars(items_of(value), depth - 1)
                if isinstance(value, DICTIONARIES):
                    yield from _scalars(value.values(), depth - 1)
        elif is_scalar(value):
            yield value


def _within(keys: Iterable[Any], depth: int = _DEPTH) -> Iterator[Any]:
    for key in keys:
        if is_scalar(key):
            continue
        yield key
        if isinstance(key, weakref.ref):
            yield key()
        elif depth and isinstance(key, tuple | list | frozenset):
            yield from _within(items_of(key), depth - 1)
