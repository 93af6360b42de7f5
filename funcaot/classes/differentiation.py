"""Whether a call is being differentiated, at any level."""

from __future__ import annotations

from collections.abc import Iterable

import torch

from funcaot._torch.autograd.autograd import in_dual_level, is_forward_grad_enabled
from funcaot._torch.levels.functorch import TransformType, fully_unwrapped, interpreter_stack

__all__ = ["is_differentiated"]

_DERIVATIVES = (TransformType.Grad, TransformType.Jvp)


def is_differentiated(tensors: Iterable[torch.Tensor]) -> bool:
    """Whether a derivative of what's computed from ``tensors`` may be asked for."""
    # A dual level also stays open while torch.func.jvp runs what it has lowered; there the switch
    # is off, as it is in the forward of a Function.
    if in_dual_level() and is_forward_grad_enabled():
        return True
    if any(i.key() in _DERIVATIVES for i in interpreter_stack()):
        return True
    return torch.is_grad_enabled() and any(fully_unwrapped(t).requires_grad for t in tensors)
