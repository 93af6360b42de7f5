"""Tensors on their way into a transform's level, which a capture's modes see like other operands.

A transform of torch wraps what it is given before any function mode sees it, and what is inside of
a wrapper can't be exchanged any more. So it is a function for modes where it is wrapped.
"""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch._functorch import eager_transforms
from torch._functorch import vmap as vmap_module
from torch.overrides import handle_torch_function, has_torch_function

from funcaot._torch.patches import applied
from funcaot.base.scopes import SharedPatch, holding

__all__ = ["showing_what_enters"]

_PLACES = ((eager_transforms, "_wrap_for_grad"), (vmap_module, "_add_batch_dim"))
_NO_DISPATCH = torch._C._disabled_torch_dispatch_impl  # type: ignore[attr-defined]


class _ThisThread(threading.local):
    shown = False


_this_thread = _ThisThread()


class _Wrapping:
    """Stands for a function that wraps a tensor."""

    def __init__(self, original: Callable[..., Any]) -> None:
        self.original = original

    def __call__(self, tensor: torch.Tensor, *place: int) -> torch.Tensor:
        if not _this_thread.shown or _dispatches(type(tensor)):
            return self.original(tensor, *place)
        entering: list[torch.Tensor] = []

        def enter(tensor: torch.Tensor) -> torch.Tensor:
            if has_torch_function((tensor,)):
                with torch._C.DisableTorchFunctionSubclass():  # no function of a class
                    return handle_torch_function(enter, (tensor,), tensor)
            entering.append(tensor)
            return tensor

        enter(tensor)
        return self.original(entering[-1], *place)


def _dispatches(kind: Any) -> bool:
    """Whether a tensor of a class wraps others, or is a tape's own."""
    dispatch = kind.__torch_dispatch__
    return getattr(dispatch, "__func__", dispatch) is not _NO_DISPATCH


def _exchange() -> None:
    for module, name in _PLACES:
        if not isinstance(original := getattr(module, name), _Wrapping):
            setattr(module, name, _Wrapping(original))


def _restore() -> None:
    for module, name in _PLACES:
        if isinstance(wrapping := getattr(module, name), _Wrapping):
            setattr(module, name, wrapping.original)


_patch = SharedPatch(_exchange, _restore, lasts=True)


@contextlib.contextmanager
def showing_what_enters() -> Iterator[None]:
    """While active, function modes of this thread see what transforms wrap, and may exchange it."""
    with applied("entering", _patch.used, None), holding(_this_thread, shown=True):
        yield
