"""``retain_grad()`` inside: what a function returns, and what it is given, keep their ``.grad``."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from funcaot._torch.tracing import tracing
from funcaot.aot.capture.capture import Capture
from funcaot.aot.effects.effects import Effects
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

    In eager, a written input keeps the gradient that it has at the place of ``retain_grad``. Nor is
    it known what a tensor that isn't a leaf was made of.

    Raises:
        UnsupportedError: For ``retain_grad()`` or a ``backward()`` of that kind.
    """
    _, ingoing = retained(capture)
    written = {mutation.index for mutation in effects.mutations if mutation.writes}
    if not written.isdisjoint(ingoing):
        raise UnsupportedError(
            f"{name} calls retain_grad() on a tensor that it is given and writes to.",
            remedy="write to x.clone() and return that, or call retain_grad() outside.",
        )
    for slot in capture.inputs:
        if slot.tensor is not slot.leaf and slot.leaf.is_leaf and slot.leaf.grad is not None:
            raise UnsupportedError(
                f"{name} calls backward() through {slot}, which isn't a leaf: the .grad of what it "
                "was made of would be accumulated, and a capture doesn't know what that is.",
                remedy="use torch.autograd.grad inside, or call backward() on what is returned.",
            )
