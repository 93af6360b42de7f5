"""``once_differentiable`` at every level: torch's own decorator knows base autograd only."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from funcaot.classes.traits import defined_at, display_name
from funcaot.operator.operator import custom_function_call
from funcaot.rules.returns import differentiated_twice

__all__ = ["once_at_every_level"]


class OnceDifferentiable(torch.autograd.Function):
    """The identity on its first ``count`` operands, with a reverse rule that raises.

    The operands that follow are what the values depend on: a derivative with respect to any of
    them has to arrive here.
    """

    generate_vmap_rule = True

    @staticmethod
    def forward(
        count: int, name: str, where: str, *tensors: torch.Tensor
    ) -> tuple[torch.Tensor, ...]:
        """Return the values, detached."""
        return tuple(tensor.detach() for tensor in tensors[:count])

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: Any) -> None:
        """Nothing is needed: there's no derivative."""
        ctx.count, ctx.owner, ctx.where = inputs[:3]

    @staticmethod
    def backward(ctx: Any, *cotangents: Any) -> Any:
        """Raise what eager raises."""
        raise differentiated_twice(ctx.owner, ctx.where)

    @staticmethod
    def jvp(ctx: Any, _count: Any, _name: Any, _where: Any, *tangents: Any) -> Any:
        """Let tangents through, as eager does: forward mode over the body is exact."""
        return tuple(tangents[: ctx.count])


def once_at_every_level(
    function: type, body: Callable[..., Any], ctx: Any, cotangents: tuple[Any, ...]
) -> Any:
    """Run the body of a ``once_differentiable`` backward so that any second derivative raises."""
    with torch.no_grad():
        result = body(ctx, *cotangents)
    gradients = result if isinstance(result, tuple) else (result,)
    values = [g for g in gradients if isinstance(g, torch.Tensor)]
    sources = [t for t in (*cotangents, *ctx.saved_tensors) if isinstance(t, torch.Tensor)]
    if not values or not torch.is_grad_enabled():
        return result
    said = display_name(function), defined_at(function)
    guarded = iter(custom_function_call(OnceDifferentiable, len(values), *said, *values, *sources))
    return tuple(next(guarded) if isinstance(g, torch.Tensor) else g for g in gradients)
