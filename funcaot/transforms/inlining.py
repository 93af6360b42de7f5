"""Whether ``make_fx`` keeps a Function as one node or records what its forward does."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Iterator
from typing import Any

import torch

from funcaot.base.scopes import holding

__all__ = ["functionalizing", "inline_functions", "inlined", "is_inlining"]


class _State(threading.local):
    active = False
    remove: str | None = None


_state = _State()


@contextlib.contextmanager
def inline_functions() -> Iterator[None]:
    """While active in this thread, ``make_fx`` records a Function's forward instead of one node.

    The graph then holds plain operations only. It keeps no derivative rule: differentiate first,
    trace afterwards.

    Example:
        >>> import torch, funcaot
        >>> from torch.fx.experimental.proxy_tensor import make_fx
        >>> class Square(funcaot.Function):
        ...     @staticmethod
        ...     def forward(x):
        ...         return x * x
        ...     @staticmethod
        ...     def setup_context(ctx, inputs, output):
        ...         pass
        >>> with funcaot.inline_functions():
        ...     graph = make_fx(Square.apply)(torch.ones(3))
        >>> [str(n.target) for n in graph.graph.nodes if n.op == "call_function"]
        ['aten.mul.Tensor']
    """
    with holding(_state, active=True):
        yield


def is_inlining() -> bool:
    """Whether :func:`inline_functions` is active in this thread."""
    return _state.active


@contextlib.contextmanager
def functionalizing(remove: str) -> Iterator[None]:
    """Remember, for what's called below, that a functionalization is in progress."""
    with holding(_state, remove=remove):
        yield


def inlined(function: type, operands: tuple[Any, ...]) -> Any:
    """Run forward for a tracer to record.

    Functionalization has been peeled off by the time a tracer sees the call, and forward may work
    in place on its own temporaries; so it's applied again, to forward alone.
    """
    if _state.remove is None:
        return function.forward(*operands)
    return torch.func.functionalize(function.forward, remove=_state.remove)(*operands)
