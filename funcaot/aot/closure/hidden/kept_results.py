"""What ``functools.cache`` and ``lru_cache`` keep; the walk reads it, and a capture leaves none.

What such a function gave without running is read like anything else that is closed over. A tensor
that it makes while a function is captured has no values, and would be handed to everybody who calls
it afterwards, as would a number that the capture leaves open: so what is kept is forgotten then,
and made again by the next call.
"""

from __future__ import annotations

import gc
import types
import weakref
from collections.abc import Container, Iterable, Iterator
from functools import _lru_cache_wrapper, partial
from typing import Any, NamedTuple, TypeAlias

import torch

from funcaot._torch.levels.functorch import is_functorch_wrapped_tensor
from funcaot._torch.tensors.sizes.written_numbers import is_written
from funcaot._torch.tracing.tracing import is_symbolic
from funcaot.aot.closure.constants import is_immutable, is_scalar
from funcaot.rules.operands.reached import may_hold, reached_from

__all__ = [
    "MOST",
    "Finder",
    "Kept",
    "KeptResults",
    "is_object_of_a_capture",
    "remembering_by",
    "results_of",
    "see",
]

Function: TypeAlias = "_lru_cache_wrapper[Any]"

_DEPTH = 4
MOST = 4096
_GONE = object()
# The functions that a walk reached, each with how often it was called, and the ``id`` of its keys.
_seen: weakref.WeakKeyDictionary[Function, tuple[int, frozenset[int]]] = weakref.WeakKeyDictionary()
# By the ``id`` of the code that runs for a new result: the functions, and how often it has run.
_by_code: dict[int, weakref.WeakKeyDictionary[Function, int]] = {}


class Kept(NamedTuple):
    """What a function keeps for some arguments.

    Attributes:
        at: Where the key is among what a bounded function refers to; -1 of another one.
        key: What it is kept by.
        value: The result.
    """

    at: int
    key: Any
    value: Any

    @property
    def label(self) -> str:
        """The arguments, as one would write them; objects by their classes."""
        parts = self.key if type(self.key) is tuple else (self.key,)
        shown = (repr(each) if is_scalar(each) else type(each).__name__ for each in parts)
        return ", ".join(shown)[:80]


class Finder:
    """Finds what a function keeps for some arguments; source text of a reader names it.

    It keeps none of them alive, but for constants.

    Attributes:
        identity: Which key it is, by ``id``.
    """

    def __init__(self, kept: Kept, otherwise: Any = _GONE) -> None:
        """Note what is looked for.

        Args:
            kept: What the function keeps.
            otherwise: What it would make again, if it keeps that no more.
        """
        self._at, self.identity = kept.at, id(kept.key)
        self._plain = kept.key if _is_plain(kept.key) else _GONE
        self._otherwise = otherwise

    def __call__(self, function: Function, _: str) -> Any:
        """What the function keeps now.

        Raises:
            KeyError: If it keeps nothing for these arguments, and would run.
        """
        if self._at >= 0:
            things = gc.get_referents(function)
            if self._at + 1 < len(things) and id(things[self._at]) == self.identity:
                return things[self._at + 1]
        for at, key, value in results_of(function):
            if self._is_at(key):
                self._at, self.identity = at, id(key)
                return value
        if self._otherwise is _GONE:
            raise KeyError("it keeps nothing for these arguments")
        return self._otherwise

    def _is_at(self, key: Any) -> bool:
        if self._plain is _GONE:
            return id(key) == self.identity
        return type(key) is type(self._plain) and _is_plain(key) and bool(key == self._plain)


def _is_plain(key: Any) -> bool:
    """Whether a key is made of constants, and of what marks where arguments by name begin."""
    if type(key) is tuple:
        return all(is_immutable(each) or type(each) is object for each in key)
    return is_immutable(key)


def results_of(function: Function) -> list[Kept]:
    """What a function keeps; a bounded one has what it gave last at the end."""
    things, own = gc.get_referents(function), vars(function)
    # It comes after the results.
    cache = next((each for each in things[::-1] if type(each) is dict and each is not own), {})
    if function.cache_info().maxsize is None:
        return [Kept(-1, key, value) for key, value in [*cache.items()]]
    # Each key is followed by its result, and by Python's class of links.
    keys = {*map(id, [*cache])}
    at, found = next((i for i, each in enumerate(things) if id(each) in keys), 0), list[Kept]()
    while len(found) < len(keys) and id(things[at]) in keys:
        found.append(Kept(at, things[at], things[at + 1]))
        at += 3
    return found


class KeptResults:
    """Which results functions gave that they kept, while code was recorded."""

    def __init__(self) -> None:
        """None is known yet."""
        self._before: dict[Function, tuple[int, frozenset[int]]] = {}
        self._given: dict[Function, list[tuple[Kept, bool]]] = {}

    def start(self) -> None:
        """Note what all functions keep that a walk reached so far."""
        self._before = {function: _now(function) for function in _alive(_seen)}

    def stop(self, codes: Container[types.CodeType]) -> None:
        """Note which they gave, and forget what holds tensors or open numbers of a capture.

        A rule runs on tensors of its own: what it kept is nothing for the code around it.

        Args:
            codes: The code that ran.
        """
        for function in _alive(_seen):
            calls, keys = self._before.get(function, _seen[function])
            info = function.cache_info()
            count = info.hits + info.misses - calls
            if count == 0:
                continue
            results = results_of(function)
            if info.maxsize is not None and count > 0:
                results = results[-count:]
            given = [(each, id(each.key) not in keys) for each in results[-MOST:]]
            if _runs(function, codes) and any(m and _is_of_a_capture(each) for each, m in given):
                function.cache_clear()
                given = [(each, made) for each, made in given if not made]
            self._given[function] = given

    def given(self, function: Function) -> Iterator[tuple[Kept, Finder]]:
        """What a function gave of what may change, each with what finds it.

        Constants that it made while code was recorded, it makes again.
        """
        if function not in _seen:
            see(function)
            self._given[function] = [(each, False) for each in results_of(function)[-MOST:]]
        for each, made in self._given.get(function, ()):
            if not (made and is_immutable(each.value)):
                yield each, Finder(each, each.value) if made else Finder(each)


def see(function: Function) -> None:
    """Have captures from here on look at a function, which a walk reached."""
    if function not in _seen:
        _seen[function] = _now(function)
    if (inner := _within(function)) is not None:
        runs = _by_code.setdefault(id(inner.__code__), weakref.WeakKeyDictionary())
        runs[function] = function.cache_info().misses


def _alive(table: weakref.WeakKeyDictionary[Function, Any]) -> list[Function]:
    """The functions in a table, to which another thread may add one."""
    found = (reference() for reference in table.keyrefs())
    return [function for function in found if function is not None]


def _now(function: Function) -> tuple[int, frozenset[int]]:
    info = function.cache_info()
    return info.hits + info.misses, frozenset(id(each.key) for each in results_of(function))


def _runs(function: Function, codes: Container[types.CodeType]) -> bool:
    inner = _within(function)
    return inner is not None and inner.__code__ in codes


def remembering_by(code: types.CodeType) -> Function | None:
    """The function that remembers what code gives which starts to run; None if it is called itself.

    The walk reaches the function before the code runs. It has counted the run when the code starts.
    """
    runs = _by_code.get(id(code))
    if runs is None:
        return None
    for function in _alive(runs):
        inner, count = _within(function), function.cache_info().misses
        if count != runs.get(function) and inner is not None and inner.__code__ is code:
            runs[function] = count
            return function
    return None


def _within(function: _lru_cache_wrapper[Any]) -> types.FunctionType | None:
    """The function that runs for a new result; None if that is none of Python's."""
    inner: Any = function.__wrapped__
    while not isinstance(inner, types.FunctionType):
        if not isinstance(inner, partial | types.MethodType):
            return None
        inner = inner.func if isinstance(inner, partial) else inner.__func__
    return inner


def _in(values: Iterable[Any], depth: int) -> Iterator[Any]:
    for value in values:
        yield value
        if depth and may_hold(value) and not isinstance(value, torch.Tensor):
            yield from _in(reached_from(value), depth - 1)


def _is_of_a_capture(kept: Kept) -> bool:
    return any(map(_is_traced, _in([kept.value], _DEPTH)))


def is_object_of_a_capture(value: Any) -> bool:
    """Whether an object holds tensors or open numbers of a capture; a table of them isn't one."""
    return any(
        any(map(_is_traced, _in([each], _DEPTH)))
        for each in _leaves(value)
        if not isinstance(each, torch.Tensor) and not is_written(each)
    )


def _leaves(value: Any) -> Iterator[Any]:
    if isinstance(value, tuple) or type(value) in (list, dict):
        for each in value.values() if type(value) is dict else value:
            yield from _leaves(each)
    else:
        yield value


def _is_traced(value: Any) -> bool:
    if isinstance(value, torch.Tensor):
        return is_symbolic(value) or is_functorch_wrapped_tensor(value)
    return is_written(value)
