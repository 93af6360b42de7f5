"""Warming up functions that take whole training steps: what the calls after the first one find."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Sequence
from typing import TypeAlias

import torch

from funcaot.aot.runtime.entry import Entry
from funcaot.aot.runtime.warm_up import warm, without_first_steps
from funcaot.aot.state.first_state import with_states

Found: TypeAlias = tuple[Entry, tuple[torch.Tensor, ...]]
_After: TypeAlias = list[tuple[torch.Tensor, torch.Tensor | None]]


def warm_calls(name: str, find: Callable[[], Found], leaves: Sequence[object], orders: int) -> None:
    """Compile the program of a call, and that of the next one if it finds other ``.grad``.

    Args:
        name: The user's function.
        find: Finds or captures the program of a call as things are.
        leaves: Flat leaves of the call.
        orders: How often to differentiate.

    Raises:
        UnsupportedError: If the function has to be called once before it can be captured.
    """
    with contextlib.ExitStack() as made, without_first_steps(name):
        (entry, lifted), makes_state = with_states(find, made)
        after = _gradients_after(entry)
        # A call that makes an optimizer's state is eager's, and the next one finds its gradients.
        if not (after and makes_state):
            warm(entry, leaves, lifted, orders)
        if after:
            with _having(after):
                entry, lifted = find()
                warm(entry, leaves, lifted, orders)


def _gradients_after(entry: Entry) -> _After:
    """What is in the ``.grad`` of leaves after a call, where there was none or where none is left.

    The values are zeros.
    """
    gradients = entry.capture.gradients
    found: _After = []
    for gradient in () if gradients is None else gradients.gradients:
        tensor = None if gradient.tensor is None else gradient.tensor()
        if tensor is None or not gradient.assigned:
            continue
        if (gradient.value is None) != (gradient.lifted is None):
            made = None if gradient.value is None else _zeros(entry, gradient.value, tensor)
            found.append((tensor, made))
    return found


def _zeros(entry: Entry, value: int, leaf: torch.Tensor) -> torch.Tensor:
    """Zeros that look like what a call puts into ``.grad``."""
    result = entry.effects.outputs[entry.capture.tree.num_leaves + value].result
    if result is None or entry.sizes is not None:
        return torch.zeros_like(leaf)
    like = entry.forward.segment.outputs[result]
    shape, stride = tuple(map(int, like.shape)), tuple(map(int, like.stride()))
    return torch.empty_strided(shape, stride, dtype=like.dtype, device=leaf.device).zero_()


@contextlib.contextmanager
def _having(after: _After) -> Iterator[None]:
    """Give leaves these gradients, for a while."""
    before = [tensor.grad for tensor, _ in after]
    try:
        for tensor, gradient in after:
            tensor.grad = gradient
        yield
    finally:
        for (tensor, _), gradient in zip(after, before, strict=True):
            tensor.grad = gradient
