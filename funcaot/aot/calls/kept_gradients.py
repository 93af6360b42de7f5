"""The ``.grad`` of results on which other results depend; ``call`` fills it in each backward.

All results come from one autograd node, so the engine knows of each result's own gradient only. In
eager, what other results make of it is added before ``retain_grad`` or a hook of it sees it.
"""

from __future__ import annotations

import weakref
from collections.abc import Sequence
from typing import Any, TypeAlias

import torch

from funcaot._torch.levels import functorch
from funcaot.aot.segment.segment import Segment
from funcaot.errors import UnsupportedError

__all__ = ["Kept", "fill", "kept_in", "show"]

# For a tensor that keeps its gradient: its position in ``shown``, and that of its own gradient.
Kept: TypeAlias = tuple[tuple[int, "int | None", torch.Tensor], ...]


def show(
    segment: Segment,
    results: Sequence[torch.Tensor | None],
    outputs: Sequence[Any],
    inputs: Sequence[torch.Tensor],
) -> None:
    """Tell the autograd node of a call which tensors its caller has."""
    made = [r for r, place in zip(results, segment.places, strict=True) if place.output is not None]
    node: Any = next((r.grad_fn for r in made if r is not None and r.grad_fn is not None), None)
    if node is not None:
        node.shown = tuple(
            weakref.ref(inputs[each.input] if each.output is None else outputs[each.output])
            for each in segment.shown
        )


def kept_in(owner: Any, ctx: Any, tangents: Sequence[torch.Tensor | None]) -> Kept:
    """The results whose own gradient lacks a part that somebody is going to see.

    Args:
        owner: The segment in the form that ran.
        ctx: Its autograd node.
        tangents: What arrived.

    Raises:
        UnsupportedError: If a hook has seen a gradient that lacked it.
    """
    found = []
    references: Sequence[Any] = getattr(ctx, "shown", ())
    for position, reference in enumerate(references):
        tensor, shown = reference(), owner.segment.shown[position]
        if tensor is None or not (tensor.retains_grad or tensor._backward_hooks):
            continue
        if any(tensor is other for *_, other in found):
            continue
        if all(tangents[index] is None for index in shown.by):
            continue
        if any(not _is_torchs(hook) for hook in (tensor._backward_hooks or {}).values()):
            raise UnsupportedError(
                f"A hook is registered on a result of {owner.segment.settings.name} on which "
                "another result depends. One autograd node makes both, so the hook saw the "
                "gradient without that part.",
                remedy="register the hook inside of the function, where it sees the whole "
                "gradient; or compile what makes the tensor and what uses it as two functions.",
            )
        if tensor.retains_grad:
            found.append((position, shown.own, tensor))
    if found and functorch.under_transforms([each for each in tangents if each is not None]):
        return ()
    return tuple(found)


def _is_torchs(hook: Any) -> bool:
    """Whether a hook is one by which torch itself waits for a gradient."""
    return str(getattr(hook, "__module__", "")).startswith("torch.")


def fill(
    kept: Kept, tangents: Sequence[torch.Tensor | None], gradients: Sequence[torch.Tensor | None]
) -> None:
    """Add to each ``.grad`` what the engine didn't know of.

    Args:
        kept: What keeps its gradient.
        tangents: What arrived; of that the engine has accumulated a tensor's own.
        gradients: The whole gradients.
    """
    for (_, position, tensor), whole in zip(kept, gradients, strict=True):
        own = None if position is None else tangents[position]
        if whole is None:
            continue
        missing = whole.clone(memory_format=torch.contiguous_format) if own is None else whole - own
        tensor.grad = missing if tensor.grad is None else tensor.grad + missing
