"""The rule for ``jvp`` levels: ``jvp``, ``jacfwd``, ``linearize``."""

from __future__ import annotations

from typing import Any

import torch
from torch.autograd import forward_ad

from funcaot._torch.levels.functorch import (
    TransformType,
    map_tensors,
    unwrap_for_grad,
    wrap_for_grad,
)
from funcaot.classes.protocol import PushedForward, pushed_forward_of
from funcaot.operator.operator import custom_function_call
from funcaot.transforms.levels import LowerLevel, apply_level, laid_out_for


def jvp_rule(interpreter: Any, function: type, *operands: Any) -> Any:
    """Push tangents through the user's ``jvp``, and compute the value one level down."""
    operands = map_tensors(interpreter._cptr.lift, operands)
    pushed_forward = pushed_forward_of(function)
    if pushed_forward is not None:
        return _fused(interpreter, pushed_forward, operands)
    return apply_level(function, LowerLevel(interpreter, function), operands)


def _fused(
    interpreter: Any, pushed_forward: PushedForward, operands: tuple[Any, ...]
) -> tuple[torch.Tensor, ...]:
    """Take this level's tangents off the operands, call one level down, put tangents on."""
    level = interpreter.level()
    pairs = [forward_ad.unpack_dual(operand, level=0) for operand in operands]
    primals = [unwrap_for_grad(pair.primal, level) for pair in pairs]
    tangents = [
        None if pair.tangent is None else unwrap_for_grad(pair.tangent, level) for pair in pairs
    ]
    with interpreter.lower():
        outputs, pushed = pushed_forward(primals, tangents)
        outputs = [*map(laid_out_for, outputs, pushed)]
    wrapped = []
    for output, tangent in zip(outputs, pushed, strict=True):
        value = wrap_for_grad(output, level)
        if tangent is not None:
            value = forward_ad.make_dual(value, wrap_for_grad(tangent, level), level=0)
        wrapped.append(value)
    return tuple(wrapped)


custom_function_call.py_impl(TransformType.Jvp)(jvp_rule)
