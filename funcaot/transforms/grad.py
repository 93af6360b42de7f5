"""The rule for ``grad`` levels: ``grad``, ``vjp``, ``jacrev``."""

from __future__ import annotations

from typing import Any

from funcaot._torch.levels.functorch import TransformType, map_tensors
from funcaot.classes.protocol import program_of
from funcaot.operator.operator import custom_function_call
from funcaot.transforms.levels import LowerLevel, apply_level


def grad_rule(interpreter: Any, function: type, *operands: Any) -> Any:
    """Record one autograd node at this level, and compute its value one level down."""
    operands = map_tensors(interpreter._cptr.lift, operands)
    program = program_of(function)
    if program is None:
        return apply_level(function, LowerLevel(interpreter, function), operands)
    function, finish = program.differentiable(function, operands)
    return finish(apply_level(function, LowerLevel(interpreter, function), operands))


custom_function_call.py_impl(TransformType.Grad)(grad_rule)
