"""torch's pytree registry, the one that users of ``torch.func`` register their containers in."""

from __future__ import annotations

from collections import namedtuple
from collections.abc import Callable
from typing import Any

from torch.utils._pytree import (
    SUPPORTED_NODES,
    TreeSpec,
    tree_flatten,
    tree_map,
    tree_unflatten,
)

__all__ = [
    "NAMEDTUPLE",
    "TreeSpec",
    "flattener_of",
    "is_registered",
    "tree_flatten",
    "tree_map",
    "tree_unflatten",
]

# The registry has one entry for all namedtuples, under the factory that makes them.
NAMEDTUPLE = namedtuple


def flattener_of(kind: Any) -> Callable[[Any], tuple[Any, Any]]:
    """The registered function from a container to its children and its context."""
    return SUPPORTED_NODES[kind].flatten_fn


def is_registered(kind: Any) -> bool:
    """Whether objects of a class are containers."""
    return kind in SUPPORTED_NODES
