"""Whether a call is being differentiated, at any level."""

from __future__ import annotations

import contextlib
from collections.abc import Iterable

import torch

from funcaot._torch.autograd.autograd import in_dual_level, is_forward_grad_enabled
from funcaot._torch.levels.functorch import (
    TransformType,
    function_mode_active,
    has_tangent,
    interpreter_stack,
    requires_grad_at_any_level,
)
from funcaot._torch.tracing.tracing import without_torch_function

__all__ = ["is_differentiated", "is_perturbed"]

_DERIVATIVES = (TransformType.Grad, TransformType.Jvp)


def is_differentiated(tensors: Iterable[torch.Tensor]) -> bool:
    """Whether a derivative of what's computed from ``tensors`` may be asked for."""
    # A dual level also stays open while torch.func.jvp runs what it has lowered; there the switch
    # is off, as it is in the forward of a Function.
    active = (in_dual_level() and is_forward_grad_enabled()) or any(
        level.key() in _DERIVATIVES for level in interpreter_stack()
    )
    if not (active or torch.is_grad_enabled()):
        return False
    return any(map(is_perturbed, tensors))


def is_perturbed(tensor: torch.Tensor) -> bool:
    """Whether a tensor is differentiated, by base autograd, a level or a tangent."""
    # A capture takes every tensor that an attribute is read of for one that the program uses.
    with without_torch_function() if function_mode_active() else contextlib.nullcontext():
        return requires_grad_at_any_level(tensor) or has_tangent(tensor)
