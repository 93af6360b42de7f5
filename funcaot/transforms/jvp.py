"""The rule for ``jvp`` levels: ``jvp``, ``jacfwd``, ``linearize``."""

from __future__ import annotations

from typing import Any

import torch
import torch.autograd.forward_ad as forward_ad

from funcaot._torch.functorch import TransformType, map_tensors, unwrap_for_grad, wrap_for_grad
from funcaot.operator import custom_function_call
from funcaot.protocol import fused_jvp_of, has_fused_jvp
from funcaot.transforms.levels import LowerLevel, apply_level


def jvp_rule(interpreter: Any, function: type, *operands: Any) -> Any:
    """Push tangents through the user's ``jvp``, and compute the value one level down."""
    operands = map_tensors(interpreter._cptr.lift, operands)
    if has_fused_jvp(function):
        tangents = tuple(_tangent(value) for value in operands)
        fused = fused_jvp_of(function, tuple(tangent is not None for tangent in tangents))
        if fused is not None:
            return _fused(interpreter, fused, operands, tangents)
    return apply_level(function, LowerLevel(interpreter, function), operands)


def _tangent(value: Any) -> torch.Tensor | None:
    if not isinstance(value, torch.Tensor):
        return None
    return forward_ad.unpack_dual(value, level=0).tangent


def _fused(
    interpreter: Any, fused: type, operands: tuple[Any, ...], tangents: tuple[Any, ...]
) -> Any:
    """One program for values and tangents, called one level down."""
    level = interpreter.level()
    primals = tuple(
        forward_ad.unpack_dual(value, level=0).primal if isinstance(value, torch.Tensor) else value
        for value in operands
    )
    given = tuple(tangent for tangent in tangents if tangent is not None)
    lowered = map_tensors(lambda tensor: unwrap_for_grad(tensor, level), (*primals, *given))
    with interpreter.lower():
        output = custom_function_call(fused, *lowered)
    half = len(output) // 2
    wrapped = map_tensors(lambda tensor: wrap_for_grad(tensor, level), output)
    return tuple(
        value if tangent is None else forward_ad.make_dual(value, tangent, level=0)
        for value, tangent in zip(wrapped[:half], wrapped[half:], strict=True)
    )


custom_function_call.py_impl(TransformType.Jvp)(jvp_rule)
