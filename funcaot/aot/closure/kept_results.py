"""What ``functools.cache`` and ``lru_cache`` keep; the walk reads it, and a capture leaves none.

A tensor that such a function returned before is read like any other that is closed over. One that
it makes while a function is captured has no values, and would be handed to everybody who calls it
afterwards, as would a number that the capture leaves open: so what is kept is forgotten then, and
made again by the next call.
"""

from __future__ import annotations

import gc
import types
import weakref
from collections.abc import Container, Iterator
from functools import _lru_cache_wrapper, partial
from typing import Any

import torch

from funcaot._torch.levels.functorch import is_functorch_wrapped_tensor
from funcaot._torch.tensors.sizes.written_numbers import is_written
from funcaot._torch.tracing.tracing import is_symbolic

_DEPTH = 4
_MOST = 4096
_CONTAINERS = (tuple, list, dict)
_seen: weakref.WeakSet[Any] = weakref.WeakSet()
# By the ``id`` of the code that runs for a new result: the functions, and how often it has run.
_by_code: dict[int, weakref.WeakKeyDictionary[_lru_cache_wrapper[Any], int]] = {}


def tensors_kept(function: _lru_cache_wrapper[Any]) -> Iterator[torch.Tensor]:
    """Tensors among the results that a function keeps, or in tuples, lists and dictionaries there.

    Args:
        function: The function; from here on, captures in which it runs look at it.
    """
    _seen.add(function)
    if (inner := _within(function)) is not None:
        runs = _by_code.setdefault(id(inner.__code__), weakref.WeakKeyDictionary())
        runs[function] = function.cache_info().misses
    for value in _kept(function):
        if isinstance(value, torch.Tensor):
            yield value


def _kept(function: _lru_cache_wrapper[Any]) -> Iterator[Any]:
    if function.cache_info().currsize <= _MOST:
        own = vars(function)
        yield from _in([thing for thing in gc.get_referents(function) if thing is not own], _DEPTH)


def remembering_by(code: types.CodeType) -> _lru_cache_wrapper[Any] | None:
    """The function that remembers what code gives which starts to run; None if it is called itself.

    The walk reaches the function before the code runs. It has counted the run when the code starts.
    """
    for function, known in [*_by_code.get(id(code), {}).items()]:
        inner, count = _within(function), function.cache_info().misses
        if count != known and inner is not None and inner.__code__ is code:
            _by_code[id(code)][function] = count
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


def forget_traced(codes: Container[types.CodeType]) -> None:
    """Clear what holds tensors or open numbers of a capture.

    Args:
        codes: The code that ran in it.
    """
    for function in tuple(_seen):
        inner = _within(function)
        if (
            inner is not None
            and inner.__code__ in codes
            and any(map(_is_of_a_capture, _kept(function)))
        ):
            function.cache_clear()


def _in(values: Any, depth: int) -> Iterator[Any]:
    for value in values:
        if depth and type(value) in _CONTAINERS:
            yield from _in(value.values() if type(value) is dict else value, depth - 1)
        else:
            yield value


def _is_of_a_capture(value: Any) -> bool:
    if isinstance(value, torch.Tensor):
        return is_symbolic(value) or is_functorch_wrapped_tensor(value)
    return is_written(value)
