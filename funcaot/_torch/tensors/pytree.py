"""torch's pytree registry, the one that users of ``torch.func`` register their containers in."""

from __future__ import annotations

import sys
from collections import OrderedDict, defaultdict, namedtuple
from collections.abc import Callable, Iterable
from typing import Any

import torch
from torch.utils._pytree import (
    SUPPORTED_NODES,
    TreeSpec,
    tree_unflatten,
)
from torch.utils._pytree import (
    register_pytree_node as register,
)
from torch.utils._pytree import (
    tree_flatten as _tree_flatten,
)
from torch.utils._pytree import (
    tree_map as _tree_map,
)

from funcaot.errors import UnsupportedError

__all__ = [
    "NAMEDTUPLE",
    "TreeSpec",
    "flattener_of",
    "is_constant_size",
    "is_registered",
    "is_size",
    "register",
    "telling_keys_apart",
    "too_deep",
    "tree_flatten",
    "tree_map",
    "tree_unflatten",
    "unflattener_of",
]

# The registry has one entry for all namedtuples, under the factory that makes them.
NAMEDTUPLE = namedtuple


def is_size(value: Any) -> bool:
    """Whether a value is a ``torch.Size``, which torch's pytrees would make a tuple."""
    return isinstance(value, torch.Size)


def is_constant_size(value: Any) -> bool:
    """Whether a value is a ``torch.Size`` of plain numbers."""
    return isinstance(value, torch.Size) and all(type(size) is int for size in value)


def tree_flatten(
    tree: Any, is_leaf: Callable[[Any], bool] = is_constant_size
) -> tuple[list[Any], TreeSpec]:
    """The leaves of a structure, and what it is without them.

    Args:
        tree: The structure.
        is_leaf: What isn't taken apart; a ``torch.Size`` of numbers.

    Raises:
        UnsupportedError: If containers are nested deeper than Python's recursion limit allows.
    """
    try:
        return _tree_flatten(tree, is_leaf)
    except RecursionError:
        raise too_deep() from None


def tree_map(
    function: Callable[..., Any],
    tree: Any,
    *others: Any,
    is_leaf: Callable[[Any], bool] = is_constant_size,
) -> Any:
    """A structure with each leaf replaced by what a function makes of it and of others' leaves."""
    return _tree_map(function, tree, *others, is_leaf=is_leaf)


class _Keys(list):  # type: ignore[type-arg]
    """Keys of a dictionary; ``1``, ``1.0`` and ``True`` are equal, and code tells them apart."""

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, list) or not list.__eq__(self, other):
            return False
        return [*map(_told, self)] == [*map(_told, other)]

    def __ne__(self, other: object) -> bool:
        return not self == other

    __hash__ = None  # pyright: ignore[reportAssignmentType]


def _told(key: Any) -> Any:
    """What tells a key from one that is equal to it."""
    kind = type(key)
    if kind in (tuple, frozenset):
        return (kind, *map(_told, key))
    return (kind, repr(key)) if kind in (float, complex) else kind


def _keys(keys: Iterable[Any]) -> list[Any]:
    found = [*keys]
    return found if all(type(key) is str for key in found) else _Keys(found)


def telling_keys_apart(tree: TreeSpec) -> TreeSpec:
    """A structure that is unequal to those with other keys in its dictionaries, if equal ones."""
    if tree.is_leaf():
        return tree
    context = tree.context
    if tree.type in (dict, OrderedDict):
        context = _keys(context)
    elif tree.type is defaultdict:
        context = [context[0], _keys(context[1])]
    return TreeSpec(tree.type, context, [telling_keys_apart(each) for each in tree.children()])


def too_deep() -> Exception:
    """The error of containers that can't be taken apart, or compared, within Python's limit.

    It is Python's own where the calls that led here have used up more of the limit themselves.
    """
    frame, depth = sys._getframe(), 0
    while frame.f_back is not None:
        frame, depth = frame.f_back, depth + 1
    if 2 * depth > sys.getrecursionlimit():
        return RecursionError("maximum recursion depth exceeded")
    return UnsupportedError(
        "Arguments or results of a compiled function are containers in one another, too deep "
        "for Python's recursion limit.",
        remedy="pass a flat list or dictionary, or raise sys.setrecursionlimit.",
    )


def flattener_of(kind: Any) -> Callable[[Any], tuple[Any, Any]]:
    """The registered function from a container to its children and its context."""
    return SUPPORTED_NODES[kind].flatten_fn


def unflattener_of(kind: Any) -> Callable[[Any, Any], Any]:
    """The registered function from children and context to a container."""
    return SUPPORTED_NODES[kind].unflatten_fn


def is_registered(kind: Any) -> bool:
    """Whether objects of a class are containers."""
    return kind in SUPPORTED_NODES
