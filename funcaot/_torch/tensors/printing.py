"""How symbolic tensors are printed while forward mode is on."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any

import torch
from torch import _tensor_str as tensor_printing
from torch._subclasses.fake_tensor import FakeTensor
from torch._subclasses.functional_tensor import FunctionalTensor

from funcaot._torch.patches import applied
from funcaot.scopes import SharedPatch

__all__ = ["printable_under_dual_level"]

_original = getattr(tensor_printing, "_str", repr)


def _represent(tensor: torch.Tensor, **options: Any) -> str:
    if torch.autograd.forward_ad._current_level < 0:
        return _original(tensor, **options)
    if not (tensor.device.type == "meta" or isinstance(tensor, FakeTensor | FunctionalTensor)):
        try:
            return _original(tensor, **options)
        except RuntimeError:  # below autograd; here the frames that hold guards end in order
            pass
    return f"tensor(..., size={tuple(tensor.shape)}, dtype={tensor.dtype})"


def _replace() -> None:
    tensor_printing._str = _represent


def _restore() -> None:
    tensor_printing._str = _original


_patch = SharedPatch(_replace, _restore)


@contextlib.contextmanager
def printable_under_dual_level() -> Iterator[None]:
    """Let symbolic tensors be printed while a forward-mode level is open, also one begun inside.

    Torch tries the overloads of an op one by one and prints the arguments for each that doesn't
    fit. Printing looks for a tangent, which fails below autograd, and the exception leaves the
    dispatcher's thread-local state broken.
    """
    with applied("printing", _patch.used, None):
        yield
