"""The rule for ``is_grads_batched``: the vmap that predates functorch, seen as today's vmap."""

from __future__ import annotations

from typing import Any

import torch

from funcaot._torch.levels.functorch import pytree, run_without_legacy_vmap
from funcaot.operator.operator import custom_function_call
from funcaot.rules.batching import batch_size_of, run_batched, with_dimension


def legacy_batched_rule(function: type, operands: tuple[Any, ...]) -> Any:
    """Run the call as ``torch.func.vmap`` and put the legacy level back on the outputs."""

    def batched(in_dims: tuple[int | None, ...], *physical: Any) -> Any:
        def call(*values: Any) -> Any:
            return custom_function_call(function, *values)

        size = batch_size_of(physical, in_dims)
        output, dims = run_batched(call, physical, in_dims, batch_size=size, randomness="error")
        return pytree.tree_map(
            lambda value, dim: (
                with_dimension(value, dim, 0, size) if isinstance(value, torch.Tensor) else value
            ),
            output,
            dims,
        )

    return run_without_legacy_vmap(batched, operands)


custom_function_call.register("legacy_batched")(legacy_batched_rule)
