"""Backwards that change something in Python; ``plain_call`` asks for the class that it calls.

Autograd runs the backward of a Function that is called as eager calls it when it is traced, once
for a program. One that counts or stores has to do so in each backward: it is looked at here, and
runs on real values between compiled parts then, as that of a node does.
"""

from __future__ import annotations

from typing import Any

from funcaot.classes.opaque import current_captor
from funcaot.classes.traits import defines_setup_context, name_of_reverse, reverse_rule
from funcaot.rules.opaque.backward import input_layouts, traced_or_opaque

__all__ = ["acting"]


def acting(function: type, user: type) -> type:
    """The same Function, whose backward acts in each call.

    Args:
        function: The class that is called, which has a backward.
        user: The user's own.
    """
    made: Any = function
    theirs = reverse_rule(function)

    def note(ctx: Any, inputs: tuple[Any, ...]) -> None:
        ctx._funcaot_layouts, ctx._funcaot_given = input_layouts(inputs), ()

    def forward(ctx: Any, *inputs: Any) -> Any:
        note(ctx, inputs)
        return made.forward(ctx, *inputs)

    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: Any) -> None:
        note(ctx, inputs)
        made.setup_context(ctx, inputs, output)

    def backward(ctx: Any, *cotangents: Any) -> Any:
        captor = current_captor()
        if captor is None:
            return theirs(ctx, *cotangents)
        with captor.running_rule() as in_step:
            return traced_or_opaque(captor, user, theirs, ctx, cotangents, in_step=in_step)

    rule: Any = setup_context if defines_setup_context(function) else forward
    named = {rule.__name__: staticmethod(rule), name_of_reverse(function): staticmethod(backward)}
    return type(function.__name__, (function,), {**named, "__module__": function.__module__})
