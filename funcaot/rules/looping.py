"""Run a function per example in a loop, where vmap can't batch what it does."""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Any

import torch

from funcaot._torch.levels.functorch import is_batching_failure, pytree
from funcaot.errors import RuleError
from funcaot.rules.batching import dims_per_leaf, run_batched

__all__ = ["run_batched_or_looped", "run_looped"]

_logger = logging.getLogger(__name__)


def run_batched_or_looped(
    function: Callable[..., Any],
    operands: tuple[Any, ...],
    dims: Any,
    *,
    randomness: str,
    batch_size: int,
    owner: str,
) -> tuple[Any, Any]:
    """Run ``function`` batched; if vmap can't, run it once per example.

    A function that had already changed an operand when vmap gave up isn't run again.
    """
    versions = _versions(operands)
    try:
        return run_batched(function, operands, dims, batch_size=batch_size, randomness=randomness)
    except RuntimeError as error:
        if not is_batching_failure(error) or _versions(operands) != versions:
            raise
        _logger.info("%s runs once per example, since vmap can't batch it: %s", owner, error)
    return run_looped(
        function, operands, dims, batch_size=batch_size, randomness=randomness, owner=owner
    )


def _versions(operands: Any) -> list[int]:
    return [
        leaf._version
        for leaf in pytree.tree_leaves(operands)
        if isinstance(leaf, torch.Tensor) and not leaf.is_inference()
    ]


def run_looped(
    function: Callable[..., Any],
    operands: tuple[Any, ...],
    dims: Any,
    *,
    randomness: str,
    batch_size: int,
    owner: str,
) -> tuple[Any, Any]:
    """Run ``function`` on one example after another and stack what it returns.

    Returns:
        The physical output, and a tree like it with 0 or None per leaf; an operand that every
        example returned as it was comes back as itself, with its own dimension.

    Raises:
        RuleError: The batch is empty, or random numbers were drawn with ``randomness="error"``.
    """
    if batch_size == 0:
        raise RuleError(
            f"{owner} was called under vmap with an empty batch and has to run once per example",
            expected="at least one example, to know what the output looks like",
            got="a batch of size 0",
            remedy="define a `vmap` staticmethod.",
        )
    leaves, spec = pytree.tree_flatten(operands)
    flat_dims = dims_per_leaf(dims, operands)
    state = torch.get_rng_state()
    rows: list[list[Any]] = []
    out_spec: Any = None
    returned: dict[int, int] = {}
    for index in range(batch_size):
        if randomness == "same":
            torch.set_rng_state(state)
        example = [
            leaf if dim is None else leaf.select(dim, index)
            for leaf, dim in zip(leaves, flat_dims, strict=True)
        ]
        row, out_spec = pytree.tree_flatten(function(*pytree.tree_unflatten(example, spec)))
        returned = {
            j: i
            for j, value in enumerate(row)
            for i, given in enumerate(example)
            if isinstance(value, torch.Tensor) and value is given
        }
        rows.append(row)
    if randomness == "error" and not torch.equal(state, torch.get_rng_state()):
        raise RuleError(
            f"{owner} drew random numbers under vmap",
            expected="no random operation, with randomness='error'",
            got="a random operation",
            remedy="pass randomness='different' or 'same' to vmap.",
        )
    physical, out_dims = [], []
    for j, column in enumerate(zip(*rows, strict=True)):
        if j in returned:
            physical.append(leaves[returned[j]])
            out_dims.append(flat_dims[returned[j]])
        elif isinstance(column[0], torch.Tensor):
            physical.append(torch.stack(column))
            out_dims.append(0)
        else:
            physical.append(_common(column, owner))
            out_dims.append(None)
    return (
        pytree.tree_unflatten(physical, out_spec),
        pytree.tree_unflatten(out_dims, out_spec),
    )


def _common(values: tuple[Any, ...], owner: str) -> Any:
    """The one value that all examples returned, where it isn't a tensor."""
    first = values[0]
    for value in values[1:]:
        try:
            same = value is first or bool(value == first)
        except Exception:  # noqa: BLE001  (a comparison of the user's, or of arrays)
            same = False
        if not same:
            raise RuleError(
                f"{owner} ran once per example under vmap, since vmap can't batch it, and the "
                "examples disagree on a value that isn't a tensor",
                expected="the same value for each example, in outputs and in attributes of ctx",
                got=f"different values of type {type(first).__name__}",
                remedy="return or save a tensor, or define a `vmap` staticmethod.",
            )
    return first
