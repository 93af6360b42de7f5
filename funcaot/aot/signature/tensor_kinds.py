"""Kinds of tensors that a capture can't make symbolic."""

from __future__ import annotations

import torch

from funcaot._torch.tracing import tracing
from funcaot.errors import UnsupportedError

__all__ = ["refuse_unknown_kind"]

_PLAIN = (torch.Tensor, torch.nn.Parameter, torch.nn.Buffer)


def refuse_unknown_kind(tensor: torch.Tensor, said: str) -> None:
    """Refuse wrapper subclasses, nested and quantized tensors.

    Args:
        tensor: The tensor.
        said: What is done with it, for the message: "f was called with {} as its argument".

    Raises:
        UnsupportedError: If it is one of them.
    """
    if type(tensor) not in _PLAIN and tracing.is_wrapper_subclass(tensor):
        kind = f"a tensor subclass {type(tensor).__name__}"
        remedy = "compile the function that works on the plain tensors inside."
    elif tensor.is_nested:
        kind, remedy = "a nested tensor", "pass its values() and offsets, or a padded tensor."
    elif tensor.is_quantized:
        kind, remedy = "a quantized tensor", "pass int_repr(), and scale and zero point as numbers."
    else:
        return
    raise UnsupportedError(said.format(kind), remedy=remedy)
