"""Kinds of tensors that a capture can't make symbolic."""

from __future__ import annotations

import torch

from funcaot._torch.levels import functorch
from funcaot._torch.tensors.own_functions import has_own_functions
from funcaot._torch.tracing import tracing
from funcaot.aot.subclasses.refusals import is_behind_levels
from funcaot.aot.subclasses.structure import is_wrapper
from funcaot.errors import UnsupportedError

__all__ = ["refuse_unknown_kind"]

_PLAIN = (torch.Tensor, torch.nn.Parameter, torch.nn.Buffer)


def refuse_unknown_kind(tensor: torch.Tensor, said: str) -> None:
    """Refuse nested and quantized tensors, and wrappers where a transform is active.

    Args:
        tensor: The tensor.
        said: What is done with it, for the message: "f was called with {} as its argument".

    Raises:
        UnsupportedError: If it is one of them, or of a class that says itself what ops do.
    """
    if type(tensor) not in _PLAIN and is_wrapper(tensor):
        kind = f"a tensor subclass {type(tensor).__name__}"
        if not (functorch.transforms_active() or tracing.forward_mode_active()):
            return
        kind += " inside a transform or a dual level"
        remedy = "compile the function that calls the transform."
    elif functorch.transforms_active() and is_behind_levels(tensor):
        kind = "a tensor subclass inside a transform"
        remedy = "compile the function that calls the transform."
    elif type(tensor) not in _PLAIN and has_own_functions(type(tensor)):
        kind = (
            f"a tensor of class {type(tensor).__name__}, whose __torch_function__ says what ops do"
        )
        remedy = "pass x.as_subclass(torch.Tensor), or keep it out of the compiled function."
    elif tensor.is_nested:
        kind, remedy = "a nested tensor", "pass its values() and offsets, or a padded tensor."
    elif tensor.is_quantized:
        kind, remedy = "a quantized tensor", "pass int_repr(), and scale and zero point as numbers."
    else:
        return
    raise UnsupportedError(said.format(kind), remedy=remedy)
