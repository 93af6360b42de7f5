"""Tensors from before a call that a Function keeps, as inputs of a program; the operator asks.

Nothing computes with such a tensor before a backward is traced, and by then a variable that held it
may hold another one.
"""

from __future__ import annotations

import contextlib
from typing import Any

import torch
from torch.overrides import handle_torch_function

from funcaot._torch.levels.functorch import function_mode_active, is_functorch_wrapped_tensor
from funcaot._torch.tracing.tracing import is_symbolic
from funcaot.classes.opaque import Captor, current_captor

__all__ = ["enter_kept", "fill", "is_of_a_call"]


def enter_kept(captor: Captor, ctx: Any) -> None:
    """Let a ctx keep the tape's tensors for those that were there before the call.

    Args:
        captor: The capture.
        ctx: What a ``setup_context`` has filled.
    """
    if ctx.to_save is not None and any(map(_was_there, ctx.to_save)):
        ctx.save_for_backward(*_entered(captor, ctx.to_save))
    for name, value in list(vars(ctx).items()):
        if _was_there(value) and not name.startswith("_funcaot_"):
            setattr(ctx, name, _entered(captor, (value,))[0])


def fill(function: Any, ctx: Any, inputs: tuple[Any, ...], output: Any) -> None:
    """Run a Function's ``setup_context``; what the user's meets becomes an input of the program.

    Args:
        function: The Function.
        ctx: What it fills.
        inputs: The operands.
        output: What forward returned.
    """
    captor = None if "funcaot_origin" in vars(function) else current_captor()
    with contextlib.nullcontext() if captor is None else captor.closed_over.entering():
        function.setup_context(ctx, inputs, output)


def is_of_a_call(tensor: torch.Tensor) -> bool:
    """Whether a tensor stands for that of each call: one of a tape, or one of a level."""
    return is_symbolic(tensor) or is_functorch_wrapped_tensor(tensor)


def _was_there(value: Any) -> bool:
    return isinstance(value, torch.Tensor) and not is_of_a_call(value)


def _entered(captor: Captor, values: tuple[Any, ...]) -> list[Any]:
    with captor.closed_over.entering():
        found = _as_modes_pass_on(*filter(_was_there, values))
    rest = map(captor.closed_over.replace, found)
    return [next(rest) if _was_there(value) else value for value in values]


def _as_modes_pass_on(*tensors: torch.Tensor) -> tuple[torch.Tensor, ...]:
    if function_mode_active():
        return handle_torch_function(_as_modes_pass_on, (), *tensors)
    return tensors
