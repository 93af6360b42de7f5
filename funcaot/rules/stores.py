"""What a Function's rules change in Python, where they run more often than eager runs them.

A capture runs forward once, as its caller's code, and what it changes is the caller's to repeat.
It runs again for a compiler and to learn what it writes to; then nothing may change.
"""

from __future__ import annotations

import contextlib
import dis
import functools
import types
from collections.abc import Callable, Iterator
from typing import Any

from funcaot.classes.opaque import Watch
from funcaot.classes.traits import display_name, origin_of
from funcaot.rules.operands.reached import is_filled

__all__ = ["again", "is_ours", "may_store", "register_watches", "watch_of"]

_STORES = {"STORE_GLOBAL", "STORE_DEREF", "STORE_SUBSCR", "DELETE_SUBSCR", "DELETE_ATTR"}
_CHANGING = {
    "add",
    "append",
    "appendleft",
    "clear",
    "discard",
    "extend",
    "insert",
    "pop",
    "popitem",
    "remove",
    "setattr",
    "setdefault",
    "sort",
    "update",
}
_DEEPEST = 4


_Make = Callable[[tuple[Any, ...], str], Watch]
_watches: list[_Make] = []


def register_watches(make: _Make) -> None:
    """Say how changes are looked at, from what makes them and a name; that is above this."""
    _watches[:] = [make]


def watch_of(rule: Any, function: type, operands: tuple[Any, ...] = ()) -> Watch | None:
    """What looks at changes of a rule that runs by itself; None if it makes none.

    Args:
        rule: The rule.
        function: The Function.
        operands: What it is called with. Functions of ours are given what they call.
    """
    if not _watches or not may_store(rule):
        return None
    return _watches[0]((rule, *operands) if is_ours(rule) else (rule,), display_name(function))


@contextlib.contextmanager
def again(function: type, operands: tuple[Any, ...] = ()) -> Iterator[None]:
    """While forward runs that ran for this call, or is going to: what it counts is taken back.

    Args:
        function: The Function.
        operands: Those of its operands that aren't tensors.
    """
    watch = watch_of(getattr(origin_of(function), "forward", None), function, operands)
    if watch is None:
        yield
        return
    looked = watch.look()
    try:
        yield
    finally:
        watch.take_back(looked, everything=True)


def may_store(rule: Any) -> bool:
    """Whether a rule's code, or what that calls by name, may change Python state.

    Args:
        rule: A forward or backward.
    """
    found = getattr(rule, "__func__", rule)
    if not isinstance(found, types.FunctionType):
        return True
    # What custom_vjp and the like make calls functions that nothing here finds.
    return is_ours(found) or _stores(found, 0)


def is_ours(rule: Any) -> bool:
    """Whether a rule calls what its Function was made of, by ``custom_vjp`` and the like."""
    return str(getattr(rule, "__module__", "")).startswith("funcaot.functions")


def _stores(function: types.FunctionType, depth: int) -> bool:
    if _code_stores(function.__code__):
        return True
    if depth == _DEEPEST:
        return True
    called = [function.__globals__.get(name) for name in function.__code__.co_names]
    called += [cell.cell_contents for cell in function.__closure__ or () if is_filled(cell)]
    if any(map(_has_methods, called)):
        return True
    return any(
        isinstance(each, types.FunctionType)
        and not str(each.__module__).startswith(("torch.", "funcaot."))
        and _stores(each, depth + 1)
        for each in called
    )


def _has_methods(value: Any) -> bool:
    """Whether something is an object of a class of the user's, whose methods may change it."""
    kind = type(value)
    return not isinstance(value, type) and not str(kind.__module__).startswith(
        ("builtins", "torch", "numpy", "types", "functools")
    )


@functools.lru_cache(maxsize=1024)
def _code_stores(code: types.CodeType) -> bool:
    before = None
    for item in dis.get_instructions(code):
        if item.opname in _STORES:
            return True
        # What is set on the context belongs to the call.
        if item.opname == "STORE_ATTR" and (before is None or before.argval != "ctx"):
            return True
        if item.opname not in ("CACHE", "NOP"):
            before = item
    if not _CHANGING.isdisjoint(code.co_names):
        return True
    return any(isinstance(c, types.CodeType) and _code_stores(c) for c in code.co_consts)
