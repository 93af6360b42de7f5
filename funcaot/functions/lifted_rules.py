"""The forward that Functions behind ``custom_jvp``, ``custom_vmap`` and ``checkpoint`` share."""

from __future__ import annotations

from typing import Any

import torch

from funcaot._torch.levels.functorch import pytree
from funcaot.functions.custom_rule import apart
from funcaot.rules.operands.flat_call import OutputStructure
from funcaot.rules.operands.lifted_call import LiftedCall, has_tangent_type

__all__ = ["LiftedRules"]


class LiftedRules:
    """Staticmethods of a Function that runs a function on lifted operands and keeps these."""

    def __init__(self, name: str) -> None:
        """The rules of the function of this name, for messages."""
        self.name = name

    def forward(self, call: LiftedCall, *tensors: Any) -> tuple[Any, ...]:
        """Run the function; its structure follows the leaves of what it returned."""
        leaves, spec = pytree.tree_flatten(call.bound(tensors).run())
        return (*apart(leaves, tensors), OutputStructure(spec))

    def setup_context(self, ctx: Any, inputs: tuple[Any, ...], output: tuple[Any, ...]) -> None:
        """Keep the call and its operands."""
        ctx.call, *tensors = inputs
        ctx.save_for_backward(*tensors)
        ctx.save_for_forward(*tensors)
        ctx.set_materialize_grads(False)
        ctx.mark_non_differentiable(
            *[o for o in output if isinstance(o, torch.Tensor) and not has_tangent_type(o)]
        )
