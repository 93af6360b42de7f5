"""Functions whose forward keeps a graph that it records; ``plain_call`` asks for what it calls.

Their forward runs on the tape, with its graph, which their backward differentiates there. What
``backward()`` fills in tensors that forward closes over are gradients of further operands.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from funcaot.classes.context import OverlayContext
from funcaot.classes.traits import display_name, name_of_reverse, reverse_rule
from funcaot.rules.kept_graphs import RetainingGraphs, own_leaves

__all__ = ["with_own_graph"]


def with_own_graph(
    function: type, operands: Sequence[Any], leaves: Sequence[torch.Tensor]
) -> tuple[type, tuple[Any, ...]]:
    """The same Function for one call, and what to call it with.

    Args:
        function: The Function class, whose forward takes ``ctx``.
        operands: What it is given.
        leaves: Tensors that it isn't given and that its graph leads to.
    """
    moves = torch.is_grad_enabled() and any(
        isinstance(value, torch.Tensor) and value.requires_grad for value in operands
    )
    leaves = tuple(leaves) if moves else ()
    rules = _OwnGraph(function, tuple(operands), leaves)
    members = {
        "forward": staticmethod(rules.forward),
        name_of_reverse(function): staticmethod(rules.backward),
        "__module__": function.__module__,
    }
    made = type(function.__name__, (function,), members)
    return made, (*operands, *leaves)


class _OwnGraph:
    """The staticmethods of one call."""

    def __init__(
        self, function: Any, operands: tuple[Any, ...], leaves: tuple[torch.Tensor, ...]
    ) -> None:
        name, count = display_name(function), len(operands)
        theirs = reverse_rule(function)

        def own(ctx: Any) -> Any:
            if not leaves:
                return ctx
            return OverlayContext(ctx, needs_input_grad=ctx.needs_input_grad[:count])

        def forward(ctx: Any, *given: Any) -> Any:
            return function.forward(own(ctx), *given[:count])

        def backward(ctx: Any, *gradients: Any) -> Any:
            before = [leaf.grad for leaf in leaves]
            for leaf in leaves:
                leaf.grad = None
            try:
                with RetainingGraphs(name, (*own_leaves(ctx, operands), *leaves)):
                    result = theirs(own(ctx), *gradients)
                    filled = [leaf.grad for leaf in leaves]
            finally:
                for leaf, gradient in zip(leaves, before, strict=True):
                    leaf.grad = gradient
            if not leaves:
                return result
            return (*(result if isinstance(result, tuple) else (result,)), *filled)

        self.forward, self.backward = forward, backward
