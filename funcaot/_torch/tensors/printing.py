"""How symbolic tensors are printed, also while forward mode is on; ``tape`` uses it in captures."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any

import torch
from torch import _tensor_str as tensor_printing
from torch._subclasses.fake_tensor import FakeTensor
from torch._subclasses.functional_tensor import FunctionalTensor

from funcaot._torch.patches import applied
from funcaot.base.scopes import SharedPatch

__all__ = ["printable"]

_original = getattr(tensor_printing, "_str", repr)
_wrapping = FunctionalTensor.__repr__


def _represent(tensor: torch.Tensor, **options: Any) -> str:
    if torch.autograd.forward_ad._current_level < 0:
        return _original(tensor, **options)
    if not (tensor.device.type == "meta" or isinstance(tensor, FakeTensor | FunctionalTensor)):
        try:
            return _original(tensor, **options)
        except RuntimeError:  # below autograd; here the frames that hold guards end in order
            pass
    return f"tensor(..., size={tuple(tensor.shape)}, dtype={tensor.dtype})"


def _represent_inner(tensor: FunctionalTensor, *, tensor_contents: object = None) -> str:
    """What a tensor of a capture is, without the name of the class that it has there."""
    return repr(tensor.elem)


def _replace() -> None:
    tensor_printing._str = _represent
    FunctionalTensor.__repr__ = _represent_inner  # type: ignore[method-assign]


def _restore() -> None:
    tensor_printing._str = _original
    FunctionalTensor.__repr__ = _wrapping  # type: ignore[method-assign]


_patch = SharedPatch(_replace, _restore, lasts=True)


@contextlib.contextmanager
def printable() -> Iterator[None]:
    """Let symbolic tensors be printed, also while a forward-mode level is open.

    Torch tries the overloads of an op one by one and prints the arguments for each that doesn't
    fit. Printing looks for a tangent, which fails below autograd, and the exception leaves the
    dispatcher's thread-local state broken.
    """
    with applied("printing", _patch.used, None):
        yield
