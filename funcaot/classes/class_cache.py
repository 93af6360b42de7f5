"""What funcaot makes for a Function class, kept on the class so that both die together."""

from __future__ import annotations

import threading
import weakref
from typing import Any

__all__ = ["cache_of", "forget_classes"]

ATTRIBUTE = "_funcaot_cache"
_lock = threading.RLock()
_holders: weakref.WeakSet[type] = weakref.WeakSet()


def cache_of(function: type) -> dict[Any, Any]:
    """The cache of one class, not of its bases.

    A table keyed weakly by class would never let go: what is generated refers to the class it was
    generated for. As an attribute it's an ordinary cycle.
    """
    cache = function.__dict__.get(ATTRIBUTE)
    if cache is None:
        with _lock:
            cache = function.__dict__.get(ATTRIBUTE)
            if cache is None:
                cache = {}
                setattr(function, ATTRIBUTE, cache)
                _holders.add(function)
    return cache


def forget_classes() -> None:
    """Take every cache off its class, which is then as its author wrote it."""
    with _lock:
        for function in list(_holders):
            if ATTRIBUTE in function.__dict__:
                delattr(function, ATTRIBUTE)
        _holders.clear()
