"""``torch.func.linearize`` in a capture, which records what its linear function computes.

Torch traces that function to a graph of its own, whose constants are then tensors of the capture
and not of a call. Here tangents are pushed forward when it is called.
"""

from __future__ import annotations

import contextlib
import inspect
import threading
from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch._functorch import eager_transforms
from torch.fx.experimental.const_fold import split_const_subgraphs
from torch.fx.experimental.proxy_tensor import make_fx
from torch.utils import _pytree as pytree

from funcaot._torch.patches import applied
from funcaot.base.scopes import SharedPatch, holding

__all__ = ["recording_linear_functions"]


class _ThisThread(threading.local):
    recording = False


_this_thread = _ThisThread()


class _Disallowing:
    """Stands for what ``linearize`` gets its two ways to make a graph from."""

    def __init__(self, original: Callable[..., Any]) -> None:
        self.original = original

    def __call__(self, func: Callable[..., Any]) -> Callable[..., Any]:
        if not _this_thread.recording:
            return self.original(func)
        if func is make_fx:
            return _called
        return (lambda graph: graph) if func is split_const_subgraphs else func


def _called(trace: Callable[..., Any]) -> Callable[..., Any]:
    """In place of ``make_fx``: pushes forward what torch would trace; results are flat."""
    around = inspect.getclosurevars(trace).nonlocals
    function, structure = around["func"], around["primals_argspec"]
    primals = pytree.tree_unflatten(around["flat_primals"], structure)

    def linear(*tangents: Any) -> list[Any]:
        pushed = torch.func.jvp(function, primals, pytree.tree_unflatten(tangents, structure))
        return pytree.tree_leaves(pushed[1])

    return lambda example: linear


def _exchange() -> None:
    original = eager_transforms.lazy_dynamo_disallow
    if not isinstance(original, _Disallowing):
        eager_transforms.lazy_dynamo_disallow = _Disallowing(original)


def _restore() -> None:
    standing: Any = eager_transforms.lazy_dynamo_disallow
    if isinstance(standing, _Disallowing):
        eager_transforms.lazy_dynamo_disallow = standing.original


_patch = SharedPatch(_exchange, _restore, lasts=True)


@contextlib.contextmanager
def recording_linear_functions() -> Iterator[None]:
    """While active, ``linearize`` makes no graph in this thread."""
    with applied("linearizing", _patch.used, None), holding(_this_thread, recording=True):
        yield
