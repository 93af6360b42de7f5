"""Attributes that users' code gives tensors, and looks for on the tensors of a capture."""

from __future__ import annotations

import contextlib
import sys
import threading
from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch._subclasses.functional_tensor import FunctionalTensor

from funcaot._torch.patches import require
from funcaot._torch.tracing.seen_classes import is_by_name
from funcaot.base.scopes import SharedPatch, holding

__all__ = ["attributes_of", "noticing_lookups"]

# What torch keeps on symbolic tensors, and marks that Dynamo and others leave on real ones.
_OWN = frozenset({"elem", "_mode_key", "_inference_mode_base", "_is_param"})
_MARKS = ("_dynamo_", "_funcaot_", "_is_view", "_sym_sizes_", "_sym_strides_")
_MARKS += ("_sizes_capsule", "_strides_capsule")

Look = Callable[[torch.Tensor, str], None]


def attributes_of(tensor: torch.Tensor) -> dict[str, Any]:
    """What users' code has set on a tensor, real or symbolic."""
    return {
        name: value
        for name, value in getattr(tensor, "__dict__", {}).items()
        if name not in _OWN and not name.startswith(_MARKS)
    }


class _ThisThread(threading.local):
    look: Look | None = None


_this_thread = _ThisThread()


def _lookup(tensor: FunctionalTensor, name: str) -> Any:
    """What Python calls for an attribute that a symbolic tensor doesn't have."""
    look = _this_thread.look
    frame = sys._getframe(1)
    if frame.f_back is not None and is_by_name(frame.f_code):
        frame = frame.f_back
    asking = frame.f_globals.get("__name__", "")
    if look is not None and not asking.startswith(("torch.", "funcaot.")):
        look(tensor, name)
    raise AttributeError(f"'Tensor' object has no attribute {name!r}", name=name, obj=tensor)


def _install() -> None:
    FunctionalTensor.__getattr__ = _lookup  # pyright: ignore[reportAttributeAccessIssue]


def _undo() -> None:
    if "__getattr__" in FunctionalTensor.__dict__:
        del FunctionalTensor.__getattr__  # pyright: ignore[reportAttributeAccessIssue]


_patch = SharedPatch(_install, _undo)


@contextlib.contextmanager
def noticing_lookups(look: Look) -> Iterator[None]:
    """While active in this thread, ``look`` hears of each attribute that isn't found."""
    require("lookups")
    with _patch.used(), holding(_this_thread, look=look):
        yield
