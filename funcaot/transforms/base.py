"""The rule below all levels: base autograd, with whatever dispatch modes are active."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from funcaot._torch.autograd.autograd import in_dual_level
from funcaot.classes.opaque import current_captor
from funcaot.classes.protocol import program_of
from funcaot.operator.operator import custom_function_call
from funcaot.operator.single_level import single_level_class
from funcaot.transforms.levels import BaseRunner, apply_level, with_tangents


class _BelowAutograd:
    """Forward at the base: the modes' rules, then the user's forward."""

    def __init__(self, function: type) -> None:
        """Bind the Function."""
        self.function = function

    def __call__(self, operands: tuple[Any, ...]) -> Any:
        """Compute the value."""
        output = custom_function_call.below_autograd(self.function, *operands)
        return _distinct(output) if in_dual_level() else output


def base_rule(function: type, *operands: Any) -> Any:
    """Record one node of base autograd; the program's own class when it needs a derivative."""
    captor = current_captor()
    if captor is None:
        return _differentiable(function, operands)
    with captor.calling():
        return _differentiable(function, operands)


def _differentiable(function: type, operands: tuple[Any, ...]) -> Any:
    program = program_of(function)
    if program is None or not _needs_gradient(operands):
        return _applied(function, operands)
    function, finish = program.differentiable(function, operands)
    return finish(_applied(function, operands))


def _applied(function: type, operands: tuple[Any, ...]) -> Any:
    below = _BelowAutograd(function)
    if in_dual_level():
        return with_tangents(lambda: apply_level(function, below, operands))
    return apply_level(function, below, operands)


def _needs_gradient(operands: tuple[Any, ...]) -> bool:
    return torch.is_grad_enabled() and any(
        isinstance(value, torch.Tensor) and value.requires_grad for value in operands
    )


def direct_apply(function: type) -> Callable[..., Any]:
    """``apply`` of a class that runs the user's forward itself, for calls that nothing watches."""

    def forward(*operands: Any) -> Any:
        output = function.forward(*operands)
        return _distinct(output) if in_dual_level() else output

    apply = single_level_class(function, forward, BaseRunner()).apply

    def call(*operands: Any) -> Any:
        return with_tangents(lambda: apply(*operands)) if in_dual_level() else apply(*operands)

    return call


def _distinct(outputs: Any) -> Any:
    """Autograd can't give two tangents to one tensor that's returned twice."""
    if not isinstance(outputs, tuple):
        return outputs
    seen: set[int] = set()
    result = []
    for value in outputs:
        twice = isinstance(value, torch.Tensor) and id(value) in seen
        seen.add(id(value))
        result.append(value.view_as(value) if twice else value)
    return tuple(result)


custom_function_call.register("base")(base_rule)
custom_function_call.register("direct")(direct_apply)
