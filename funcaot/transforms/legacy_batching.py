"""The rule for ``is_grads_batched``: the vmap that predates functorch, seen as today's vmap."""

from __future__ import annotations

from typing import Any

import torch

from funcaot._torch.functorch import run_without_legacy_vmap
from funcaot.operator import custom_function_call


def legacy_batched_rule(function: type, operands: tuple[Any, ...]) -> Any:
    """Run the call as ``torch.func.vmap`` and put the legacy level back on the outputs."""

    def batched(in_dims: tuple[int | None, ...], *physical: Any) -> Any:
        def call(*values: Any) -> Any:
            return custom_function_call(function, *values)

        return torch.func.vmap(call, in_dims=in_dims, out_dims=0)(*physical)

    return run_without_legacy_vmap(batched, operands)


custom_function_call.register("legacy_batched")(legacy_batched_rule)
