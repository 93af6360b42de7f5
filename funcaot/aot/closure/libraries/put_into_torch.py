"""What users put in the place of torch's own functions and methods; artifacts are compared with it.

Functions of torch aren't followed, so that one that was replaced (attention by another kernel, say)
is nothing that the reader of a program compares. It shows by whose module it runs in.
"""

from __future__ import annotations

import sys
import types
from collections.abc import Iterator, Mapping
from operator import is_
from typing import Any

import torch

from funcaot.aot.closure.look import module_of
from funcaot.aot.closure.ran import is_library
from funcaot.aot.closure.ran_code import digest_of

__all__ = ["put_into_torch"]

# Modules whose functions a capture may run; methods of modules and optimizers are compared one by
# one where they ran.
_MODULES = (
    "torch",
    "torch._C._nn",
    "torch._tensor",
    "torch.autograd",
    "torch.fft",
    "torch.functional",
    "torch.linalg",
    "torch.nn.functional",
    "torch.special",
    "torch.utils.checkpoint",
)
# What torch itself decorates its functions with.
_OF_TORCH = {"typing_extensions"}


# What a module or class held when nothing of a user's was there.
_held_of_torch: dict[str, list[Any]] = {}


def put_into_torch() -> str:
    """Each place in torch that holds something of a user's, and what; empty as a rule."""
    found: list[str] = []
    for name in _MODULES:
        module = sys.modules.get(name)
        if module is not None:
            found += _put_into(name, vars(module))
    found += _put_into("torch.Tensor", vars(torch.Tensor))
    return ", ".join(sorted(found))


def _put_into(name: str, held: Mapping[str, Any]) -> list[str]:
    """The same of one module or class; a look at it is short while it holds the same objects."""
    places = list(held.items())
    values = [value for _, value in places]
    before = _held_of_torch.get(name)
    if before is not None and len(before) == len(values) and all(map(is_, before, values)):
        return []
    found = [line for key, value in places for line in _told(f"{name}.{key}", value)]
    if not found:
        _held_of_torch[name] = values
    return found


def _is_users(module: str) -> bool:
    return not (module in _OF_TORCH or module == "builtins" or is_library(module))


def _told(place: str, value: Any) -> Iterator[str]:
    """One line if the value is a user's function, class, or object that can be called."""
    if isinstance(value, staticmethod | classmethod):
        value = value.__func__
    elif isinstance(value, property):
        for part in (value.fget, value.fset):
            yield from _told(place, part)
        return
    if isinstance(value, types.FunctionType):
        # A wrapper may say that it is of the module that it wraps.
        home = str(value.__globals__.get("__name__", ""))
        if _is_users(home):
            yield f"{place} is {home}.{value.__qualname__} {digest_of(value.__code__)}"
    elif isinstance(value, type):
        if _is_users(module_of(value)):
            yield f"{place} is {module_of(value)}.{value.__qualname__}"
    elif callable(value):
        home = module_of(type(value))
        if home and _is_users(home):
            yield f"{place} is an object of {home}.{type(value).__qualname__}"
