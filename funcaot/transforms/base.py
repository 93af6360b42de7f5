"""The rule below all levels: base autograd, with whatever dispatch modes are active."""

from __future__ import annotations

from typing import Any

import torch

from funcaot.operator import custom_function_call
from funcaot.protocol import program_of
from funcaot.transforms.levels import apply_level


class _BelowAutograd:
    """Forward at the base: the modes' rules, then the user's forward."""

    def __init__(self, function: type) -> None:
        """Bind the Function."""
        self.function = function

    def __call__(self, operands: tuple[Any, ...]) -> Any:
        """Compute the value."""
        return custom_function_call.below_autograd(self.function, *operands)


def base_rule(function: type, *operands: Any) -> Any:
    """Record one node of base autograd; the program's own class when it needs a derivative."""
    program = program_of(function)
    if program is None or not _needs_gradient(operands):
        return apply_level(function, _BelowAutograd(function), operands)
    function, finish = program.differentiable(function, operands)
    return finish(apply_level(function, _BelowAutograd(function), operands))


def _needs_gradient(operands: tuple[Any, ...]) -> bool:
    return torch.is_grad_enabled() and any(
        isinstance(value, torch.Tensor) and value.requires_grad for value in operands
    )


custom_function_call.register("base")(base_rule)
