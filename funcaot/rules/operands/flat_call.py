"""A call on pytrees, as operands of a Function and a record of everything else."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

import torch

from funcaot._torch.levels.functorch import pytree
from funcaot.errors import RuleError

__all__ = [
    "OPERAND",
    "FlatCall",
    "OutputStructure",
    "apart_from",
    "flatten_like",
    "flatten_values",
    "tensors_of",
]


class _Operand:
    """Marks the place of a tensor among the leaves."""


OPERAND = _Operand()


@dataclass(frozen=True, eq=False)
class FlatCall:
    """How to rebuild the arguments of a call from its tensors.

    Attributes:
        specs: The tree structure of each argument.
        leaves: The leaves of each argument, with a mark in place of tensors.
    """

    specs: tuple[Any, ...]
    leaves: tuple[tuple[Any, ...], ...]

    def arguments(self, tensors: tuple[Any, ...]) -> tuple[Any, ...]:
        """The arguments, with ``tensors`` in their places."""
        rest = iter(tensors)
        return tuple(
            pytree.tree_unflatten([next(rest) if x is OPERAND else x for x in leaves], spec)
            for leaves, spec in zip(self.leaves, self.specs, strict=True)
        )


@dataclass(frozen=True, eq=False)
class OutputStructure:
    """The tree structure of an output; opaque, so that every level passes it through."""

    spec: Any

    def rebuild(self, leaves: Any) -> Any:
        """The output."""
        return pytree.tree_unflatten(list(leaves), self.spec)


def flatten_like(tree: Any, spec: Any, who: str, what: str) -> tuple[Any, ...]:
    """The leaves of a tree that should have a given structure; None stands for no derivative.

    None may also stand in place of a subtree.

    Raises:
        RuleError: The structure is another.
    """
    leaves, found = pytree.tree_flatten(tree)
    if found == spec:
        return tuple(leaves)
    leaves = _leaves_with_nones(tree, spec)
    if leaves is None:
        raise RuleError(
            f"{who} returned a tree of another structure for {what}",
            expected=str(spec),
            got=str(found),
            remedy="return a value of the structure that it belongs to, or None.",
        )
    return tuple(leaves)


def _leaves_with_nones(tree: Any, spec: Any) -> list[Any] | None:
    if tree is None:
        return [None] * spec.num_leaves
    children, found = pytree.tree_flatten(tree, is_leaf=lambda value: value is not tree)
    if spec.is_leaf() or found.is_leaf():
        return [tree] if spec.num_leaves == 1 and found.is_leaf() else None
    same = (found.type, found.context, found.num_children)
    if same != (spec.type, spec.context, spec.num_children):
        return None
    leaves: list[Any] = []
    for child, expected in zip(children, spec.children(), strict=True):
        below = _leaves_with_nones(child, expected)
        if below is None:
            return None
        leaves.extend(below)
    return leaves


def tensors_of(values: Any) -> tuple[torch.Tensor, ...]:
    """The tensors among the leaves of a tree."""
    return tuple(x for x in pytree.tree_leaves(values) if isinstance(x, torch.Tensor))


def apart_from(given: Any, results: Iterable[Any]) -> tuple[Any, ...]:
    """Results of a Function's forward, with views in the place of what it was given.

    Autograd returns such a view itself, but refuses to save what is returned as it came.
    """
    known = set(map(id, tensors_of(given)))
    return tuple(value.view_as(value) if id(value) in known else value for value in results)


def flatten_values(values: tuple[Any, ...]) -> tuple[FlatCall, tuple[torch.Tensor, ...]]:
    """Flatten arguments that are already in order."""
    flat = [pytree.tree_flatten(value) for value in values]
    call = FlatCall(
        tuple(spec for _, spec in flat),
        tuple(
            tuple(OPERAND if isinstance(x, torch.Tensor) else x for x in leaves)
            for leaves, _ in flat
        ),
    )
    return call, tensors_of([leaves for leaves, _ in flat])
