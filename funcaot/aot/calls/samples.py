"""Backwards of programs of wrappers under a ``vmap`` that their forward ran below of.

A graph of inner tensors has no batched form: how a class's inner tensors lie along a dimension of
the wrapper, only its ops know. So the backward runs for each sample, and results are stacked.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, TypeAlias

import torch

from funcaot._torch.levels import functorch
from funcaot.aot.subclasses.refusals import is_behind_levels, level_refusal
from funcaot.aot.subclasses.structure import is_wrapper
from funcaot.rules import batching

__all__ = ["are_batched_wrappers", "for_each_sample"]

_Run: TypeAlias = Callable[[tuple[Any, ...]], Sequence[Any]]


def are_batched_wrappers(tangents: Sequence[torch.Tensor | None], *, used: bool) -> bool:
    """Whether tangents come in a batch to a backward that wrappers have to do with.

    Args:
        tangents: The tangents.
        used: Whether the program has had to do with wrappers.
    """
    if functorch.has_legacy_batched(tangents):
        return used or _hide_wrappers(tangents)
    if not functorch.transforms_active():
        return False
    interpreter: Any = functorch.coerce_cinterpreter(functorch.peek_interpreter_stack())
    is_vmap = interpreter.key() == functorch.TransformType.Vmap
    return is_vmap and (used or _hide_wrappers(tangents))


def _hide_wrappers(tangents: Sequence[torch.Tensor | None]) -> bool:
    present = [tangent for tangent in tangents if tangent is not None]
    held = map(functorch.without_legacy_batch, present)
    return any(is_wrapper(value) or is_behind_levels(value) for value in held)


def for_each_sample(run: _Run, tangents: Sequence[Any], name: str) -> tuple[Any, ...]:
    """Gradients for tangents at a ``vmap`` level, each computed below of it.

    Args:
        run: The backward for tangents below the level.
        tangents: The tangents.
        name: The user's function, for messages.

    Raises:
        UnsupportedError: If samples can't be taken of a batch of the class, or be stacked.
    """
    if functorch.has_legacy_batched(tangents):

        def run_physical(in_dims: tuple[int | None, ...], *given: Any) -> tuple[Any, ...]:
            return _stacked(run, in_dims, given, name)

        return functorch.run_without_legacy_vmap(run_physical, tangents)
    interpreter: Any = functorch.coerce_cinterpreter(functorch.peek_interpreter_stack())
    level = interpreter.level()
    given, in_dims = batching.unbatched(tuple(tangents), level)
    with interpreter.lower():
        if all(dim is None for dim in in_dims):
            return tuple(run(given))
        found = _stacked(run, in_dims, given, name)
    return tuple(
        None if each is None else functorch.add_batch_dimension(each, 0, level) for each in found
    )


def _stacked(
    run: _Run, in_dims: Sequence[int | None], given: Sequence[Any], name: str
) -> tuple[Any, ...]:
    batches = [(each, dim) for each, dim in zip(given, in_dims, strict=True) if dim is not None]
    count = batches[0][0].shape[batches[0][1]]
    if not count:
        raise level_refusal(name)
    found = [
        run(tuple(_sample(each, dim, at, name) for each, dim in zip(given, in_dims, strict=True)))
        for at in range(count)
    ]
    return tuple(_stack(column, name) for column in zip(*found, strict=True))


def _sample(value: Any, dim: int | None, at: int, name: str) -> Any:
    if dim is None:
        return value
    try:
        return value.select(dim, at)
    except Exception as error:
        raise level_refusal(name) from error


def _stack(column: Sequence[Any], name: str) -> Any:
    if any(each is None for each in column):
        return None
    try:
        return torch.stack(list(column))
    except Exception as error:
        raise level_refusal(name) from error
