"""The rule for ``jvp`` levels: ``jvp``, ``jacfwd``, ``linearize``."""

from __future__ import annotations

from typing import Any

from funcaot._torch.functorch import TransformType, map_tensors
from funcaot.operator import custom_function_call
from funcaot.transforms.levels import LowerLevel, apply_level


def jvp_rule(interpreter: Any, function: type, *operands: Any) -> Any:
    """Push tangents through the user's ``jvp``, and compute the value one level down."""
    operands = map_tensors(interpreter._cptr.lift, operands)
    return apply_level(function, LowerLevel(interpreter, function), operands)


custom_function_call.py_impl(TransformType.Jvp)(jvp_rule)
