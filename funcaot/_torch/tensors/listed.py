"""``x.tolist()`` of a symbolic tensor asks the function mode of a capture; ``capture`` uses it.

Torch's own method for such tensors takes the numbers one by one, below all modes.
"""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Iterator
from typing import Any

import torch
from torch._subclasses.functional_tensor import FunctionalTensor
from torch.overrides import TorchFunctionMode, _get_current_function_mode_stack

from funcaot._torch.patches import applied
from funcaot.base.scopes import SharedPatch, holding

__all__ = ["listing_by"]


class _ThisThread(threading.local):
    mode: TorchFunctionMode | None = None


_this_thread = _ThisThread()
_one_by_one = FunctionalTensor.tolist


def _listed(tensor: FunctionalTensor) -> Any:
    mode = _this_thread.mode
    if mode is None or not any(each is mode for each in _get_current_function_mode_stack()):
        return _one_by_one(tensor)
    return torch.Tensor.tolist(tensor)


def _replace() -> None:
    FunctionalTensor.tolist = _listed  # type: ignore[method-assign]


def _restore() -> None:
    FunctionalTensor.tolist = _one_by_one  # type: ignore[method-assign]


_patch = SharedPatch(_replace, _restore)


@contextlib.contextmanager
def listing_by(mode: TorchFunctionMode) -> Iterator[None]:
    """While a mode is active inside, in this thread, it is asked for lists."""
    with applied("lists", _patch.used, None), holding(_this_thread, mode=mode):
        yield
