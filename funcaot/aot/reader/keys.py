"""Which objects are the keys of a dictionary or in a set; ``reader_source`` writes the comparison.

No key is kept alive for it, and none is asked: a class may have an equality of its own. A key that
has no weak references is held, as another one may get its ``id`` when it is gone.
"""

from __future__ import annotations

import weakref
from collections.abc import Iterable
from typing import Any

import torch

from funcaot.aot.closure.children import items_of
from funcaot.aot.closure.constants import is_immutable
from funcaot.aot.closure.look import weakly

# In the place of a key that is compared as the other objects are.
_ANY = None


def known_keys(container: Any) -> tuple[Any, ...]:
    """What ``are_keys`` compares: the objects among the keys of a dictionary, in their order."""
    return tuple(map(_known_key, items_of(container)))


def _known_key(key: Any) -> Any:
    if is_immutable(key) or isinstance(key, torch.Tensor):
        return _ANY
    return weakly(key)


def are_keys(known: Iterable[Any], container: Any) -> bool:
    """Whether a dictionary of as many keys has the same objects for keys, in the same order."""
    keys = zip(known, items_of(container), strict=True)
    return all(reference is _ANY or reference() is key for reference, key in keys)


def known_items(container: Any) -> tuple[Any, ...]:
    """What ``are_items`` compares: all that is in a set."""
    return tuple(weakly(item) or item for item in items_of(container))


def are_items(known: Iterable[Any], container: Any) -> bool:
    """Whether a set of as many items has the same ones."""
    items = zip(known, items_of(container), strict=True)
    return all(
        (kept() if isinstance(kept, weakref.ref) and kept is not item else kept) is item
        for kept, item in items
    )
