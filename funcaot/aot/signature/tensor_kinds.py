"""Kinds of tensors that a capture can't make symbolic."""

from __future__ import annotations

import torch

from funcaot._torch.levels import functorch
from funcaot._torch.tracing import tracing
from funcaot.aot.subclasses.classes import refuse_class
from funcaot.aot.subclasses.refusals import EagerOnlyError, is_behind_levels
from funcaot.aot.subclasses.structure import is_wrapper
from funcaot.errors import UnsupportedError

__all__ = ["refuse_unknown_kind"]

_OVER_TRANSFORMS = "compile the function that calls the transform."


def refuse_unknown_kind(tensor: torch.Tensor, said: str) -> None:
    """Refuse nested, quantized and oneDNN's tensors, and classes that say what ops do with them.

    And wrappers where a transform is active.

    Args:
        tensor: The tensor.
        said: What is done with it, for the message: "f was called with {} as its argument".

    Raises:
        EagerOnlyError: If it is of such a class, or such a wrapper.
        UnsupportedError: If it is nested, quantized or in a layout of oneDNN.
    """
    kind = type(tensor)
    at_level = functorch.transforms_active() or tracing.forward_mode_active()
    if is_wrapper(tensor):
        if not at_level:
            return
        found = f"a tensor subclass {kind.__name__} inside a transform or a dual level"
        raise EagerOnlyError(said.format(found), remedy=_OVER_TRANSFORMS)
    if at_level and is_behind_levels(tensor):
        found = "a tensor subclass inside a transform"
        raise EagerOnlyError(said.format(found), remedy=_OVER_TRANSFORMS)
    refuse_class(kind, said, tensor)
    if tensor.is_nested:
        found, remedy = "a nested tensor", "pass its values() and offsets, or a padded tensor."
    elif tensor.is_quantized:
        found, remedy = (
            "a quantized tensor",
            "pass int_repr(), and scale and zero point as numbers.",
        )
    elif tensor.is_mkldnn:
        found, remedy = "a tensor in a layout of oneDNN's own", "pass tensor.to_dense()."
    else:
        return
    raise UnsupportedError(said.format(found), remedy=remedy)
