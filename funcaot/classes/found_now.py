"""A backward on real values runs in the capture of a step, once; ``opaque.backward`` asks.

A compiled step that calls ``backward()`` has such a backward as a node. What it counts or stores
is seen by what comes after it only if it has run by then, so it runs while the step is captured,
and the call that was captured takes what came out.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Sequence
from typing import Any

import torch

from funcaot.classes.opaque import Captor, Watch
from funcaot.classes.shared_views import is_plain
from funcaot.errors import UnsupportedError

__all__ = ["found_now"]


def found_now(
    captor: Captor,
    callers: Watch,
    opaque: type,
    given: Sequence[torch.Tensor],
    rule: Watch | None,
    ran: set[Any],
) -> list[Any]:
    """What a backward gives for the call that is captured, if its values are known.

    What the function does after it sees then what the backward has counted or stored.

    Args:
        captor: The capture.
        callers: What looks at the captured function.
        opaque: The Function that stands for the backward.
        given: Its operands.
        rule: What looks at the backward; None if that isn't known.
        ran: The user's code that had run before the backward was tried.
    """
    seen = tuple((tensor.requires_grad, tensor.is_leaf) for tensor in given)
    name = opaque.__name__.removesuffix("Backward")
    try:
        values = captor.exact_values(given)
    except UnsupportedError:  # other ranks contribute to one
        values = None
    if values is None:
        callers.note_backward(name, rule)
        return []
    looked = callers.look()
    try:
        found = captor.run(opaque, _as_found(values, seen, callers), _looked_at(callers, rule))
        found = captor.outside(lambda: tuple(gradient.detach() for gradient in found))
    except Exception:
        callers.take_back(looked)
        raise
    callers.note_backward(name, rule)
    callers.leave_of_backward(name, looked, ran)
    return [found]


def _as_found(
    values: Sequence[torch.Tensor], seen: Sequence[tuple[bool, bool]], callers: Watch
) -> tuple[torch.Tensor, ...]:
    """Values, with a parameter itself where it is one: a backward may find that by itself, too."""
    if not any(requires_grad and is_leaf for requires_grad, is_leaf in seen):
        return tuple(values)
    leaves = [tensor for tensor in callers.tensors() if tensor.requires_grad and tensor.is_leaf]
    known = {_place(tensor): tensor for tensor in leaves if is_plain(tensor)}
    return tuple(
        known.get(_place(value), value) if flags == (True, True) and is_plain(value) else value
        for value, flags in zip(values, seen, strict=True)
    )


def _place(tensor: torch.Tensor) -> tuple[Any, ...]:
    return tensor.data_ptr(), tensor.shape, tensor.stride(), tensor.dtype


@contextlib.contextmanager
def _looked_at(callers: Watch, rule: Watch | None) -> Iterator[None]:
    """While a rule runs for a call: what it writes to is noted, and what it reaches is followed."""
    followed = contextlib.nullcontext() if rule is None else rule.following()
    with callers.noting_writes(), followed:
        yield
