"""Backwards of programs of wrappers under a ``vmap`` that their forward ran below of.

A graph of inner tensors has no batched form: how a class's inner tensors lie along a dimension of
the wrapper, only its ops know. So the backward runs for each sample, and results are stacked.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Protocol, TypeAlias

import torch

from funcaot._torch.levels import functorch
from funcaot.aot.segment.segment import Segment
from funcaot.aot.subclasses.refusals import is_behind_levels, level_refusal
from funcaot.aot.subclasses.structure import is_wrapper
from funcaot.rules import batching

__all__ = ["Differentiated", "are_batched_wrappers", "gradients_of_samples"]

_Run: TypeAlias = Callable[[tuple[Any, ...]], Sequence[Any]]


class Differentiated(Protocol):
    """What this file needs of what is differentiated (see ``call.SegmentFunction``)."""

    segment: Segment

    def backward_of(
        self, ctx: Any, saved: tuple[Any, ...], tangents: tuple[Any, ...]
    ) -> tuple[Any, ...]:
        """Find or trace the backward for some tangents and run it."""
        ...


def are_batched_wrappers(segment: Segment, tangents: Sequence[torch.Tensor | None]) -> bool:
    """Whether tangents at a level come in a batch to a backward that wrappers have to do with.

    Args:
        segment: What is differentiated.
        tangents: The tangents.
    """
    if not functorch.has_legacy_batched(tangents):
        interpreter: Any = functorch.coerce_cinterpreter(functorch.peek_interpreter_stack())
        if interpreter.key() != functorch.TransformType.Vmap:
            return False
    return segment.tape.wrappers.used or _hide_wrappers(tangents)


def _hide_wrappers(tangents: Sequence[torch.Tensor | None]) -> bool:
    present = [tangent for tangent in tangents if tangent is not None]
    held = map(functorch.without_legacy_batch, present)
    return any(is_wrapper(value) or is_behind_levels(value) for value in held)


def gradients_of_samples(
    owner: Differentiated, ctx: Any, saved: tuple[Any, ...], tangents: tuple[Any, ...]
) -> tuple[Any, ...]:
    """Gradients for tangents at a ``vmap`` level, each computed below of it.

    Args:
        owner: What is differentiated.
        ctx: Of its call.
        saved: What that saved.
        tangents: The tangents.

    Raises:
        UnsupportedError: If samples can't be taken of a batch of the class, or be stacked.
    """
    edges, name = ctx.edges, owner.segment.settings.name

    def run(given: tuple[Any, ...]) -> tuple[Any, ...]:
        ctx.edges = edges  # Each backward lets go of them.
        return owner.backward_of(ctx, saved, given)

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
