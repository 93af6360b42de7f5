"""What functions hand on that a method ``__hash__`` calls; ``hashed`` asks here.

Such a helper makes something to hash of what it is given: a tuple of a list, say. Besides, it may
hand on what its code names.
"""

from __future__ import annotations

import builtins
import types
from collections.abc import Iterator
from typing import Any

from funcaot.aot.closure.constants import is_scalar

__all__ = ["handed_on_by"]

_KNOWN = (type, types.BuiltinFunctionType)
_MISSING = object()


def handed_on_by(namespace: dict[str, Any], name: str) -> list[Any] | None:
    """What a global of some code may hand on besides what it is given.

    Args:
        namespace: The code's globals.
        name: That of a function, a class or a module.

    Returns:
        Objects; None if it may be anything.
    """
    found: list[Any] = []
    value = _looked_up(namespace, name)
    if value is _MISSING or not _follow(value, found, set()):
        return None
    return found


def _looked_up(namespace: dict[str, Any], name: str) -> Any:
    return namespace.get(name, vars(builtins).get(name, _MISSING))


def _follow(value: Any, found: list[Any], seen: set[Any]) -> bool:
    """Collect what a function and those that it calls name; whether that is all there is."""
    if isinstance(value, _KNOWN) or is_scalar(value):
        return True
    if not isinstance(value, types.FunctionType):
        found.append(value)
        return True
    if value in seen:
        return True
    seen.add(value)
    names = {*_names_in(value.__code__)}
    if "id" in names or value.__closure__ is not None:
        return False
    for name in names:
        named = _looked_up(value.__globals__, name)
        if named is _MISSING:
            continue  # an attribute of something else
        if isinstance(named, types.ModuleType):
            inside = (vars(named)[each] for each in names if each in vars(named))
            if not all(_follow(each, found, seen) for each in inside):
                return False
        elif not _follow(named, found, seen):
            return False
    return True


def _names_in(code: types.CodeType) -> Iterator[str]:
    yield from code.co_names
    for each in code.co_consts:
        if isinstance(each, types.CodeType):
            yield from _names_in(each)
