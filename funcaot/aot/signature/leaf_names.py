"""What a user calls each leaf of a call's arguments: ``x``, ``batch['image']``, ``scale``."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator
from typing import Any

from funcaot._torch.tensors.pytree import NAMEDTUPLE, TreeSpec

__all__ = ["leaf_names", "positions_of"]

_POSITIONAL = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)


def leaf_names(function: Callable[..., Any], tree: TreeSpec) -> list[str]:
    """The name of each leaf.

    Args:
        function: The user's function, whose parameters have names.
        tree: Structure of ``(args, kwargs)``.
    """
    positional, keyword = tree.children()
    names = _parameters(function, positional.num_children)
    found: list[str] = []
    for name, child in zip(names, positional.children(), strict=True):
        found += _below(name, child)
    for key, child in zip(keyword.context, keyword.children(), strict=True):
        found += _below(str(key), child)
    return found


def positions_of(function: Callable[..., Any], tree: TreeSpec, wanted: frozenset[str]) -> set[int]:
    """The leaves of the arguments of some names."""
    names = leaf_names(function, tree)
    return {
        position
        for position, name in enumerate(names)
        if name in wanted or name.partition("[")[0].partition(".")[0] in wanted
    }


def _parameters(function: Callable[..., Any], count: int) -> list[str]:
    """A name for each positional argument."""
    called = getattr(function, "__wrapped__", None) or function
    module = getattr(called, "module", None)
    try:
        parameters = list(inspect.signature(getattr(module, "forward", called)).parameters.values())
    except (TypeError, ValueError):
        parameters = []
    names = [parameter.name for parameter in parameters if parameter.kind in _POSITIONAL]
    rest = next((p.name for p in parameters if p.kind is p.VAR_POSITIONAL), "args")
    names = names[:count]
    return names + [f"{rest}[{index}]" for index in range(count - len(names))]


def _below(name: str, tree: TreeSpec) -> Iterator[str]:
    if tree.is_leaf():
        yield name
        return
    for step, child in zip(_steps(tree), tree.children(), strict=True):
        yield from _below(f"{name}{step}", child)


def _steps(tree: TreeSpec) -> list[str]:
    count = tree.num_children
    if tree.type is NAMEDTUPLE:
        return [f".{field}" for field in tree.context._fields]
    if (
        isinstance(tree.context, list | tuple)
        and len(tree.context) == count
        and tree.type
        not in (
            list,
            tuple,
        )
    ):
        return [f"[{key!r}]" for key in tree.context]
    return [f"[{index}]" for index in range(count)]
