"""Run a function per example on batched tensors, keeping the identity of what it returns."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from funcaot._torch.levels.functorch import (
    add_batch_dimension,
    broadcast_to_and_flatten,
    pytree,
    unwrap_batch_dimension,
    vmap_increment_nesting,
)
from funcaot.rules.nested_tuples import dimensions_of_leaves, filled, plain_leaves

__all__ = ["batch_size_of", "dims_per_leaf", "run_batched", "unbatched", "with_dimension"]


def unbatched(values: Any, level: int) -> tuple[Any, Any]:
    """Take the batch dimension of ``level`` off every tensor of a tree.

    Returns:
        The physical values, and a tree like it with an integer or None per leaf.
    """
    leaves, build = _flattened(values)
    pairs = [
        unwrap_batch_dimension(leaf, level) if isinstance(leaf, torch.Tensor) else (leaf, None)
        for leaf in leaves
    ]
    return build([value for value, _ in pairs]), build([dim for _, dim in pairs])


def _flattened(values: Any) -> tuple[list[Any], Callable[[list[Any]], Any]]:
    """The leaves of a tree, and what makes a tree like it of as many others."""
    leaves = plain_leaves(values)
    if leaves is not None:
        return leaves, lambda others: filled(values, others)
    leaves, spec = pytree.tree_flatten(values)
    return leaves, lambda others: pytree.tree_unflatten(others, spec)


def dims_per_leaf(dims: Any, values: Any) -> list[Any]:
    """One dimension or None per leaf of a tree."""
    flat = dimensions_of_leaves(values, dims)
    if flat is None or plain_leaves(values) is None:
        spec = pytree.tree_structure(values)
        flat = broadcast_to_and_flatten(dims, spec)
        if flat is None:
            raise AssertionError(f"batch dimensions {dims} don't match {spec}")
    return flat


def batch_size_of(values: Any, dims: Any) -> int:
    """The size of the batch dimension, read off the first batched tensor."""
    leaves, _ = _flattened(values)
    flat_dims = dims_per_leaf(dims, values)
    return next(
        leaf.shape[dim] for leaf, dim in zip(leaves, flat_dims, strict=True) if dim is not None
    )


def run_batched(
    function: Callable[..., Any],
    operands: tuple[Any, ...],
    dims: Any,
    *,
    batch_size: int,
    randomness: str,
) -> tuple[Any, Any]:
    """Run ``function`` on per-example views of physical ``operands``.

    Like ``vmap``, but unbatched outputs stay unbatched, dimensions stay where they fall, and an
    operand that is returned comes back as the same object: that's how a dirty input is recognised.

    Returns:
        The physical output, and a tree like it with an integer or None per leaf.
    """
    leaves, build = _flattened(operands)
    flat_dims = dims_per_leaf(dims, operands)
    with vmap_increment_nesting(batch_size, randomness) as level:
        batched = [
            leaf if dim is None else add_batch_dimension(leaf, dim, level)
            for leaf, dim in zip(leaves, flat_dims, strict=True)
        ]
        known = {
            id(wrapper): (leaf, dim)
            for wrapper, leaf, dim in zip(batched, leaves, flat_dims, strict=True)
            if dim is not None
        }
        output = function(*build(batched))
        out_leaves, build_output = _flattened(output)
        pairs = [
            known.get(id(leaf)) or unwrap_batch_dimension(leaf, level)
            if isinstance(leaf, torch.Tensor)
            else (leaf, None)
            for leaf in out_leaves
        ]
    return (
        build_output([value for value, _ in pairs]),
        build_output([dim for _, dim in pairs]),
    )


def with_dimension(
    tensor: torch.Tensor, current: int | None, wanted: int, batch_size: int
) -> torch.Tensor:
    """Put the batch dimension of a physical tensor where it's wanted, expanding if it has none."""
    if current is None:
        shape = list(tensor.shape)
        shape.insert(wanted, batch_size)
        return tensor.unsqueeze(wanted).expand(shape)
    return tensor if current == wanted else tensor.movedim(current, wanted)
