"""What methods that a user's class has from a library read of its objects; ``children`` asks.

Code of libraries isn't followed, so no name that the user's code mentions leads there: the text of
a template, the numerator of a fraction. What such methods may read is read as a whole.
"""

from __future__ import annotations

import abc
import functools
import inspect
import types
import typing
from collections.abc import Iterator
from typing import Any

import torch

from funcaot.aot.closure.look import in_slot, module_of
from funcaot.aot.closure.ran import is_library

# Their methods read nothing of an instance.
_WITHOUT_STATE = (object, abc.ABC, typing.Generic, typing.Protocol)
# Code of these is recorded when it runs.
_RECORDED = ("torch.nn", "torch.optim", "torch.distributions")


def names_inherited(kind: type) -> frozenset[str]:
    """The names that inherited methods of libraries mention."""
    return frozenset[str]().union(*map(_names_in, _bases(kind)))


def slots_inherited(holder: Any) -> Iterator[tuple[str, Any]]:
    """The slots that an object has from classes of libraries, with what is in them."""
    for base in _bases(type(holder)):
        for name, member in vars(base).items():
            if isinstance(member, types.MemberDescriptorType):
                yield from ((name, value) for value in in_slot(holder, name))


def _bases(kind: type) -> list[type]:
    if is_library(module_of(kind)) or issubclass(kind, torch.nn.Module | torch.optim.Optimizer):
        return []
    return [
        base
        for base in kind.__mro__
        if base not in _WITHOUT_STATE
        and module_of(base) != "builtins"
        and is_library(module_of(base))
        and not module_of(base).startswith(_RECORDED)
    ]


@functools.lru_cache(maxsize=1024)
def _names_in(base: type) -> frozenset[str]:
    found: set[str] = set()
    for value in vars(base).values():
        parts = (value.fget, value.fset) if isinstance(value, property) else (value,)
        for part in parts:
            function = getattr(part, "__func__", part)
            if isinstance(function, types.FunctionType):
                code = getattr(inspect.unwrap(function), "__code__", function.__code__)
                found.update(code.co_names)
    return frozenset(found)
