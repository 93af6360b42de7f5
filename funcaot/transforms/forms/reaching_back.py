"""Backwards that reach tensors by themselves; ``plain_call`` asks for the class that it calls.

Autograd runs such a backward where no mode of a capture is in force. So the tensors that it reaches
become inputs while its forward is called, and a capture in progress is entered around it.
"""

from __future__ import annotations

import types
from collections.abc import Iterable, Iterator
from typing import Any

import torch

from funcaot._torch.tracing.tracing import is_symbolic
from funcaot.classes.opaque import Captor
from funcaot.rules.operands.closure_parts import parts_of

__all__ = ["entering", "reached_by_backward"]

_DEPTH = 4


def reached_by_backward(function: type) -> tuple[torch.Tensor, ...]:
    """The real tensors that a Function's backward closes over or finds among globals.

    What is in objects and containers may be another tensor by the time that it runs.

    Args:
        function: The Function class.
    """
    backward = getattr(function, "backward", None)
    return tuple(_reached([("", backward)], _DEPTH, set()))


def _reached(parts: Iterable[tuple[str, Any]], depth: int, seen: set[int]) -> Iterator[Any]:
    for _, value in parts:
        if id(value) in seen:
            continue
        seen.add(id(value))
        if isinstance(value, torch.Tensor):
            if not is_symbolic(value):
                yield value
        elif depth and isinstance(value, types.FunctionType):
            yield from _reached(parts_of(value), depth - 1, seen)


def entering(function: type, captor: Captor) -> type:
    """The same Function, whose backward runs in the capture that is in progress, if one is.

    Args:
        function: The Function class.
        captor: The capture that it is called in.
    """
    theirs: Any = getattr(function, "backward")  # noqa: B009 (of a class that has one)

    def backward(ctx: Any, *gradients: Any) -> Any:
        with captor.closed_over.entering():
            return theirs(ctx, *gradients)

    named = {"backward": staticmethod(backward), "__module__": function.__module__}
    return type(function.__name__, (function,), named)
