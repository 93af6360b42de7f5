"""Methods that read the memory of a symbolic tensor ask the function mode of a capture.

``capture`` uses it. Torch's own ``tolist`` of such tensors takes the numbers one by one, below all
modes; and the hooks of a backward run while the mode is put aside. Their own ``to_dense`` runs
below autograd, which doesn't record it.
"""

from __future__ import annotations

import contextlib
import sys
import threading
from collections.abc import Callable, Iterator
from typing import Any, Protocol

import torch
from torch._subclasses.functional_tensor import FunctionalTensor
from torch.overrides import _get_current_function_mode_stack

from funcaot._torch.patches import applied, require
from funcaot.base.scopes import SharedPatch, holding

__all__ = ["asking_for_reads"]


class _Mode(Protocol):
    def read(self, method: Callable[..., Any], tensor: torch.Tensor) -> Any: ...


class _ThisThread(threading.local):
    mode: _Mode | None = None


_this_thread = _ThisThread()
_one_by_one = FunctionalTensor.tolist
_unrecorded = FunctionalTensor.to_dense


def _as_lists(tensor: FunctionalTensor) -> Any:
    return _read(torch.Tensor.tolist, tensor, _one_by_one)


def _address(tensor: FunctionalTensor) -> Any:
    return _read(torch.Tensor.data_ptr, tensor, torch.Tensor.data_ptr)


def _read(method: Any, tensor: FunctionalTensor, otherwise: Callable[..., Any]) -> Any:
    mode = _this_thread.mode
    if mode is None:
        return otherwise(tensor)
    if any(each is mode for each in _get_current_function_mode_stack()):
        return method(tensor)
    asking = str(sys._getframe(2).f_globals.get("__name__"))
    of_user = asking.partition(".")[0] not in ("torch", "funcaot")
    return mode.read(method, tensor) if of_user else otherwise(tensor)


def _replace() -> None:
    FunctionalTensor.tolist = _as_lists  # type: ignore[method-assign]
    FunctionalTensor.data_ptr = _address  # type: ignore[method-assign]


def _restore() -> None:
    FunctionalTensor.tolist = _one_by_one  # type: ignore[method-assign]
    if "data_ptr" in FunctionalTensor.__dict__:
        del FunctionalTensor.data_ptr


def _record() -> None:
    FunctionalTensor.to_dense = torch.Tensor.to_dense  # type: ignore[method-assign]


def _leave_unrecorded() -> None:
    FunctionalTensor.to_dense = _unrecorded  # type: ignore[method-assign]


_patch = SharedPatch(_replace, _restore)
_recording = SharedPatch(_record, _leave_unrecorded)


@contextlib.contextmanager
def asking_for_reads(mode: _Mode) -> Iterator[None]:
    """While active in this thread, a mode is asked, where it is in place and where it isn't."""
    require("dense")
    reads = applied("reads", _patch.used, None)
    with reads, _recording.used(), holding(_this_thread, mode=mode):
        yield
