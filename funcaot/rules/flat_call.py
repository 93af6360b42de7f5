"""A call on pytrees, as operands of a Function and a record of everything else."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import torch

from funcaot._torch.levels.functorch import pytree
from funcaot.errors import ArgumentError, RuleError
from funcaot.rules.returns import describe

__all__ = [
    "FlatCall",
    "OutputStructure",
    "flatten_call",
    "flatten_like",
    "flatten_values",
    "tensors_of",
]


class _Operand:
    """Marks the place of a tensor among the leaves."""


_OPERAND = _Operand()


@dataclass(frozen=True, eq=False)
class FlatCall:
    """How to rebuild the arguments of a call from its tensors.

    Attributes:
        nondiff: Positions of arguments that have no derivative.
        specs: The tree structure of each argument.
        leaves: The leaves of each argument, with a mark in place of tensors.
    """

    nondiff: tuple[int, ...]
    specs: tuple[Any, ...]
    leaves: tuple[tuple[Any, ...], ...]

    def arguments(self, tensors: tuple[Any, ...]) -> tuple[Any, ...]:
        """The arguments, with ``tensors`` in their places."""
        rest = iter(tensors)
        return tuple(
            pytree.tree_unflatten([next(rest) if x is _OPERAND else x for x in leaves], spec)
            for leaves, spec in zip(self.leaves, self.specs, strict=True)
        )

    def split(self, values: tuple[Any, ...]) -> tuple[tuple[Any, ...], tuple[Any, ...]]:
        """Separate one value per argument into those without and those with a derivative."""
        fixed = tuple(v for i, v in enumerate(values) if i in self.nondiff)
        return fixed, tuple(v for i, v in enumerate(values) if i not in self.nondiff)

    def gradients(self, trees: tuple[Any, ...], who: str) -> tuple[Any, ...]:
        """Flatten one cotangent tree per differentiable argument into one value per tensor.

        Raises:
            RuleError: The number of trees or the structure of one is wrong.
        """
        wanted = len(self.specs) - len(self.nondiff)
        if not isinstance(trees, tuple) or len(trees) != wanted:
            raise RuleError(
                f"{who} returned the wrong number of cotangents",
                expected=f"a tuple of {wanted}, one per differentiable argument",
                got=describe(trees),
                remedy="return a tuple; use None for an argument without a derivative.",
            )
        rest = iter(trees)
        flat: list[Any] = []
        for index, (leaves, spec) in enumerate(zip(self.leaves, self.specs, strict=True)):
            if index in self.nondiff:
                values: tuple[Any, ...] = (None,) * len(leaves)
            else:
                values = flatten_like(next(rest), spec, who, f"argument {index}")
            flat.extend(v for v, x in zip(values, leaves, strict=True) if x is _OPERAND)
        return tuple(flat)

    def tangents(self, values: tuple[Any, ...]) -> tuple[Any, ...]:
        """One tangent tree per argument; leaves that aren't tensors have None."""
        rest = iter(values)
        return tuple(
            pytree.tree_unflatten([next(rest) if x is _OPERAND else None for x in leaves], spec)
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

    Raises:
        RuleError: The structure is another.
    """
    if tree is None:
        return (None,) * spec.num_leaves
    leaves, found = pytree.tree_flatten(tree)
    if found != spec:
        raise RuleError(
            f"{who} returned a tree of another structure for {what}",
            expected=str(spec),
            got=str(found),
            remedy="return a value of the structure that it belongs to, or None.",
        )
    return tuple(leaves)


def tensors_of(values: Any) -> tuple[torch.Tensor, ...]:
    """The tensors among the leaves of a tree."""
    return tuple(x for x in pytree.tree_leaves(values) if isinstance(x, torch.Tensor))


def flatten_values(values: tuple[Any, ...]) -> tuple[FlatCall, tuple[torch.Tensor, ...]]:
    """Flatten arguments that are already in order."""
    flat = [pytree.tree_flatten(value) for value in values]
    call = FlatCall(
        (),
        tuple(spec for _, spec in flat),
        tuple(
            tuple(_OPERAND if isinstance(x, torch.Tensor) else x for x in leaves)
            for leaves, _ in flat
        ),
    )
    return call, tensors_of([leaves for leaves, _ in flat])


def flatten_call(
    function: Callable[..., Any],
    nondiff: tuple[int, ...],
    args: tuple[Any, ...],
    kwargs: dict[str, Any],
) -> tuple[FlatCall, tuple[torch.Tensor, ...], tuple[Any, ...]]:
    """Bind a call to positions and flatten it.

    Returns:
        The record of the call, its tensors, and its arguments by position.

    Raises:
        ArgumentError: The arguments don't fit, or one can only be passed by keyword.
    """
    name = getattr(function, "__name__", "function")
    try:
        bound = inspect.signature(function).bind(*args, **kwargs)
    except TypeError as error:
        raise ArgumentError(
            f"{name} was called with arguments that it doesn't take: {error}",
            expected=f"{name}{inspect.signature(function)}",
            got=f"{len(args)} positional and keywords {sorted(kwargs)}",
            remedy="pass what the function takes.",
        ) from None
    bound.apply_defaults()
    if bound.kwargs:
        raise ArgumentError(
            f"{name} has arguments that can only be passed by keyword: {sorted(bound.kwargs)}",
            expected="positional parameters; its rules receive arguments by position",
            got="keyword-only parameters",
            remedy="make them positional.",
        )
    call, tensors = flatten_values(bound.args)
    count = len(bound.args)
    nondiff = tuple(index % count for index in nondiff) if count else ()
    return replace(call, nondiff=nondiff), tensors, bound.args
