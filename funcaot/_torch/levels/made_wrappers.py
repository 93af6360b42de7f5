"""Tells a capture of each tensor that wraps others and is made meanwhile; ``capture`` uses it.

No mode of torch sees that one is made: the class's own code puts inner tensors into it.
"""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable, Iterator
from typing import Any

import torch

from funcaot._torch.patches import applied
from funcaot.base.scopes import SharedPatch, holding

__all__ = ["noticing_wrappers"]

_NAME = "_make_wrapper_subclass"


class _ThisThread(threading.local):
    note: Callable[[torch.Tensor], None] | None = None


_this_thread = _ThisThread()
_make: Any = torch._C.TensorBase._make_wrapper_subclass  # type: ignore[attr-defined]


def _seen(cls: type, *args: Any, **kwargs: Any) -> Any:
    """``Tensor._make_wrapper_subclass`` while something is captured."""
    made = _make(cls, *args, **kwargs)
    if _this_thread.note is not None:
        _this_thread.note(made)
    return made


_seen.__name__ = _NAME


def _install() -> None:
    setattr(torch.Tensor, _NAME, staticmethod(_seen))


def _undo() -> None:
    if _NAME in vars(torch.Tensor):
        delattr(torch.Tensor, _NAME)


_patch = SharedPatch(_install, _undo)


@contextlib.contextmanager
def noticing_wrappers(note: Callable[[torch.Tensor], None]) -> Iterator[None]:
    """While active in this thread, ``note`` is given each wrapper before it has inner tensors."""
    with applied("made wrappers", _patch.used, None), holding(_this_thread, note=note):
        yield
