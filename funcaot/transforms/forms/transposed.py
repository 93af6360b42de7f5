"""Backwards that forward mode transposes; ``plain_call`` asks for the class that it calls.

A Function that is called as eager calls it is no node, whose rule would be looked at. Its backward
is looked at here: what it detaches would be a tangent of zero.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from typing import Any

import torch
from torch.overrides import TorchFunctionMode

from funcaot.classes.opaque import current_captor
from funcaot.classes.traits import name_of_reverse, reverse_rule
from funcaot.rules.generated.linearity import refuse_severed

__all__ = ["to_be_transposed"]


def to_be_transposed(function: type) -> type:
    """The same Function, whose backward is linear in its cotangents where it is transposed.

    Args:
        function: The Function class, which has a backward.
    """
    theirs = reverse_rule(function)

    def backward(ctx: Any, *cotangents: Any) -> Any:
        captor = current_captor()
        if captor is None or not captor.transposes:
            return theirs(ctx, *cotangents)
        with contextlib.nullcontext() if not torch.is_grad_enabled() else _CreatingGraphs():
            result = theirs(ctx, *cotangents)
        given = cotangents[0] if getattr(function, "boxed_grads_call", False) else cotangents
        refuse_severed(captor, function, result, given)
        return result

    named = {name_of_reverse(function): staticmethod(backward), "__module__": function.__module__}
    return type(function.__name__, (function,), named)


class _CreatingGraphs(TorchFunctionMode):
    """What a backward takes by ``torch.autograd.grad`` of a graph of its own has a derivative."""

    def __torch_function__(
        self,
        func: Callable[..., Any],
        types: Any,
        args: tuple[Any, ...] = (),
        kwargs: dict[str, Any] | None = None,
    ) -> Any:
        options = kwargs or {}
        if func is torch.autograd.grad:
            options = {**options, "create_graph": True}
        return func(*args, **options)
