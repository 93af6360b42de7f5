"""Which objects a method ``__hash__`` tells apart by which one they are, seen as one starts.

Of what such a method hashes, numbers, texts and objects of classes with a ``__hash__`` in Python
say what they hold. Others are known by their address, and where the hash goes to, nothing shows.
"""

from __future__ import annotations

import gc
import types
from collections.abc import Iterator
from typing import Any

from funcaot.aot.closure.constants import is_scalar
from funcaot.aot.closure.hashing.helpers import handed_on_by
from funcaot.aot.closure.look import dictionary_of, module_of

__all__ = ["ANY", "hashed_in", "name_of_kind"]

# Any object may have been hashed.
ANY = ""
# What a plain method uses besides attributes of its object.
_PLAIN = {"hash", "id", "tuple", "frozenset", "sorted", "int", "bool", "float", "len", "type"}
_PLAIN |= {"__class__", "__name__", "__qualname__", "__module__"}
_PLAIN |= {"object", "__setattr__"}  # by which an object keeps its hash
_OF_CONTAINERS = {"items", "keys", "values", "sort"}
_WHOLE = (type, types.ModuleType, types.FunctionType, types.BuiltinFunctionType)
_DEPTH = 5
_MISSING = object()


def name_of_kind(kind: type) -> str:
    """A class by its name, in any process."""
    return f"{module_of(kind)}.{kind.__qualname__}"


def hashed_in(frame: types.FrameType) -> Iterator[str]:
    """The names of classes whose objects a method may tell apart by a hash; `ANY` if any.

    Args:
        frame: That of a ``__hash__`` that starts.
    """
    code = frame.f_code
    if not code.co_argcount or code.co_freevars or any(_is_code(each) for each in code.co_consts):
        yield ANY
        return
    holder = frame.f_locals.get(code.co_varnames[0])
    used = {*code.co_names}
    values: list[Any] = []
    for name in used - _PLAIN:
        value = _own(holder, name)
        if value is _MISSING and not _is_of_container(holder, name):
            # A property may have the name of a global, and may give anything.
            hidden = any(name in vars(kind) for kind in type(holder).__mro__)
            handed_on = None if hidden else handed_on_by(frame.f_globals, name)
            if handed_on is None:
                yield ANY
                return
            # What it is given may be anything that the object leads to.
            values += [*handed_on, dictionary_of(holder)]
            continue
        values.append(value)
    if isinstance(holder, tuple | list | dict | set | frozenset):
        values += gc.get_referents(holder)
    if "id" in used:
        yield name_of_kind(type(holder))
        yield from map(name_of_kind, map(type, values))
    yield from _by_address(values, _DEPTH)


def _own(holder: Any, name: str) -> Any:
    """What an object itself has by a name, without running code of its class."""
    own = dictionary_of(holder) or {}
    for kind in type(holder).__mro__:
        member = vars(kind).get(name, _MISSING)
        if isinstance(member, types.MemberDescriptorType):
            return getattr(holder, name, _MISSING)
        if is_scalar(member):
            return own.get(name, member)
        if member is not _MISSING:
            return _MISSING
    return own.get(name, _MISSING)


def _is_of_container(holder: Any, name: str) -> bool:
    return name in _OF_CONTAINERS and isinstance(
        getattr(type(holder), name, None), types.MethodDescriptorType
    )


def _is_code(value: Any) -> bool:
    return isinstance(value, types.CodeType)


def _by_address(values: list[Any], depth: int) -> Iterator[str]:
    for value in values:
        if value is _MISSING or is_scalar(value) or isinstance(value, _WHOLE):
            continue
        kind = type(value)
        if isinstance(kind.__hash__, types.FunctionType):
            continue  # It runs, too, and is looked at then.
        if kind.__hash__ is object.__hash__:
            yield name_of_kind(kind)
        elif depth:
            yield from _by_address(gc.get_referents(value), depth - 1)
        else:
            yield ANY
