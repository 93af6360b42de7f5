"""Ops under ``vmap`` by a rule of the table; ``kernels`` registers what this makes."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from torch import Tensor

from funcaot._torch.levels import functorch
from funcaot.derivatives.arguments import has_tensors
from funcaot.derivatives.table import Derivative

__all__ = ["batched_kernel"]


def batched_kernel(rule: Derivative, original: Callable[..., Any] | None) -> Callable[..., Any]:
    """What runs for an op at the key of a batched tensor; the original is torch's, if any."""

    def kernel(keyset: Any, *args: Any, **kwargs: Any) -> Any:
        interpreter: Any = functorch.coerce_cinterpreter(functorch.peek_interpreter_stack())
        level = interpreter.level()

        def inner(value: Any) -> tuple[Any, Any]:
            if has_tensors(value):
                parts = [inner(part) for part in value]
                return [part for part, _ in parts], [dim for _, dim in parts]
            if not isinstance(value, Tensor):
                return value, None
            return functorch.unwrap_batch_dimension(value, level)

        pairs = [inner(value) for value in args]
        named = {name: inner(value) for name, value in kwargs.items()}
        with functorch.below_this_vmap():
            found = rule.batched(  # type: ignore[misc]
                interpreter.batch_size(),
                (tuple(dim for _, dim in pairs), {name: d for name, (_, d) in named.items()}),
                *(value for value, _ in pairs),
                **{name: value for name, (value, _) in named.items()},
            )
        if found is NotImplemented:
            return original(keyset, *args, **kwargs)  # type: ignore[misc]
        outputs, dimensions = found

        def outer(output: Any, dimension: Any) -> Any:
            if isinstance(output, list):
                return [outer(*pair) for pair in zip(output, dimension, strict=True)]
            if dimension is None or output is None:
                return output
            return functorch.add_batch_dimension(output, dimension, level)

        wrapped = tuple(outer(*pair) for pair in zip(outputs, dimensions, strict=True))
        return wrapped if len(wrapped) != 1 else wrapped[0]

    return kernel
