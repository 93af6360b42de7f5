"""``retain_grad()`` inside: what a function returns, and what it is given, keep their ``.grad``."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from funcaot._torch.tracing import tracing
from funcaot.aot.capture.capture import Capture
from funcaot.aot.effects.effects import Effects
from funcaot.aot.graph import graphs
from funcaot.errors import UnsupportedError

# Positions among the function's flat outputs, and among its inputs.
Retained = tuple[tuple[int, ...], tuple[int, ...]]


def retained(capture: Capture) -> Retained:
    """Which tensors a captured function asked to keep their gradient."""
    with tracing.without_torch_function():
        outputs = [i for i, value in enumerate(capture.outputs) if _retains(value)]
        inputs = [i for i, slot in enumerate(capture.inputs) if _retains(slot.tensor)]
    return tuple(outputs), tuple(inputs)


def _retains(value: Any) -> bool:
    return isinstance(value, torch.Tensor) and value.retains_grad


def retain(which: Retained, outputs: Sequence[Any], tensors: Sequence[torch.Tensor]) -> None:
    """Ask the same of the tensors of a call below all levels, which has changed them by now."""
    outgoing, ingoing = which
    for tensor in (*(outputs[i] for i in outgoing), *(tensors[i] for i in ingoing)):
        if tensor.requires_grad:
            tensor.retain_grad()


def check_gradients(capture: Capture, effects: Effects, name: str) -> None:
    """Refuse a ``.grad`` that a call can't give to the tensor that it belongs to.

    One node computes all results, so what a result or a written input is used for inside doesn't
    come back to it. Nor is it known what a tensor that isn't a leaf was made of.

    Raises:
        UnsupportedError: For ``retain_grad()`` or a ``backward()`` of that kind.
    """
    outgoing, ingoing = retained(capture)
    written = {mutation.index for mutation in effects.mutations if mutation.writes}
    kept = [capture.outputs[i] for i in outgoing]
    with capture.tape.recording():
        graded = [result for result in effects.results if result.requires_grad]
        used = any(
            result is not tensor and tensor.requires_grad and graphs.leads_to(result, tensor)
            for tensor in kept
            for result in graded
        )
    if used or not written.isdisjoint(ingoing):
        raise UnsupportedError(
            f"{name} calls retain_grad() on a tensor that it "
            + ("returns and also uses." if used else "is given and writes to."),
            remedy="return x.clone() for what is to keep its gradient, and call retain_grad() on "
            "that, or call it outside.",
        )
    for slot in capture.inputs:
        if slot.tensor is not slot.leaf and slot.leaf.is_leaf and slot.leaf.grad is not None:
            raise UnsupportedError(
                f"{name} calls backward() through {slot}, which isn't a leaf: the .grad of what it "
                "was made of would be accumulated, and a capture doesn't know what that is.",
                remedy="use torch.autograd.grad inside, or call backward() on what is returned.",
            )
