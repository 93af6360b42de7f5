"""Objects of Python's own that hold others out of sight: iterators, views of dictionaries, methods.

The analysis of effects asks of what a function returns or keeps whether a tensor is in there.
"""

from __future__ import annotations

import gc
import types
from collections.abc import Iterator, KeysView, ValuesView
from typing import Any

import torch

from funcaot._torch.tracing import tracing
from funcaot.aot.closure.look import module_of

# Whose objects show what they hold to the garbage collector and to nobody else.
_MODULES = frozenset(
    {"builtins", "itertools", "operator", "_operator", "collections", "_collections", "weakref"}
)
_ENDS = (torch.Tensor, type, types.ModuleType, types.FunctionType, types.CodeType, types.FrameType)
_MOST = 10_000


def is_iterator(value: Any) -> bool:
    """Whether it is an iterator that isn't of a class of the user's, and not a file."""
    return isinstance(value, Iterator) and module_of(type(value)) in _MODULES


def is_view(value: Any) -> bool:
    """Whether it shows what is in a dictionary."""
    return isinstance(value, KeysView | ValuesView) or type(value).__name__.endswith("dict_items")


def holds_traced(value: Any) -> bool:
    """Whether tensors of a capture are in an object of one of Python's own classes.

    Args:
        value: Anything.
    """
    if type(value) in (int, float, str, bool, type(None)):
        return False
    seen: dict[int, Any] = {}
    waiting = [value]
    while waiting and len(seen) < _MOST:
        here = waiting.pop()
        if isinstance(here, torch.Tensor):
            if tracing.is_traced(here):
                return True
            continue
        if id(here) in seen or isinstance(here, _ENDS) or module_of(type(here)) not in _MODULES:
            continue
        seen[id(here)] = here
        waiting += gc.get_referents(here)
    return False
