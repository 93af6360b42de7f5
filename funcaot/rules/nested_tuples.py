"""Leaves of nested tuples of plain values: what pytree finds too, without asking a registry.

Operands, saved tensors and gradients are nearly always tuples of tensors, and a call under a
transform takes them apart a dozen times. What holds anything else is left to pytree.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import torch

__all__ = ["dimensions_of_leaves", "filled", "plain_leaves"]

_LEAVES = (torch.Tensor, type(None), int, float, str)


def plain_leaves(values: Any) -> list[Any] | None:
    """The leaves of a tuple of tensors, numbers, None and such tuples; None for anything else."""
    if type(values) is not tuple:
        return [values] if isinstance(values, _LEAVES) else None
    found: list[Any] = []
    for value in values:
        if isinstance(value, _LEAVES):
            found.append(value)
            continue
        inner = plain_leaves(value)
        if inner is None:
            return None
        found += inner
    return found


def dimensions_of_leaves(values: Any, dims: Any) -> list[Any] | None:
    """One batch dimension per leaf of ``values``; None if ``dims`` isn't made of tuples like it."""
    if type(values) is not tuple:
        return [dims] if dims is None or isinstance(dims, int) else None
    if dims is None or isinstance(dims, int):
        dims = (dims,) * len(values)
    if type(dims) is not tuple or len(dims) != len(values):
        return None
    found: list[Any] = []
    for value, dim in zip(values, dims, strict=True):
        if type(value) is not tuple and (dim is None or isinstance(dim, int)):
            found.append(dim)
            continue
        inner = dimensions_of_leaves(value, dim)
        if inner is None:
            return None
        found += inner
    return found


def filled(template: Any, leaves: Sequence[Any]) -> Any:
    """Nested tuples like ``template`` that hold ``leaves`` instead of its own."""
    if type(template) is tuple and tuple not in map(type, template):
        return tuple(leaves)
    return _filled(template, iter(leaves))


def _filled(template: Any, leaves: Iterator[Any]) -> Any:
    if type(template) is not tuple:
        return next(leaves)
    return tuple([_filled(item, leaves) for item in template])
