"""Results of ops whose symbolic versions failed, and eager's don't."""

from __future__ import annotations

from typing import Any

import torch
from torch._subclasses.fake_tensor import (
    DataDependentOutputException,
    DynamicOutputShapeException,
)
from torch._subclasses.functional_tensor import FunctionalTensor
from torch.utils._pytree import tree_leaves, tree_map_only

from funcaot._torch.tensors.sizes.ragged import refuse_ragged_number
from funcaot._torch.tracing.eager_rules.eager_strides import of_nothing
from funcaot._torch.tracing.eager_rules.refused_writes import turned_elsewhere
from funcaot._torch.tracing.tracing_errors import MIXED

__all__ = ["answered"]


def answered(
    mode: Any, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any], error: Exception
) -> Any:
    """What an op that failed gives after all: for no elements, or from real values.

    Args:
        mode: The functionalization that ran the op, which isn't active.
        func: The op.
        args: Its arguments, functional tensors among them.
        kwargs: Its keywords.
        error: How it failed.

    Returns:
        Functional tensors, or ``NotImplemented``.

    Raises:
        UnsupportedError: Where what failed has a clearer word than torch's.
    """
    if isinstance(error, AssertionError) and MIXED in str(error):
        return _of_zeros(mode, func, args, kwargs)
    if not isinstance(error, (DataDependentOutputException, DynamicOutputShapeException)):
        made = of_nothing(mode, func, args, kwargs)
        if made is not NotImplemented:
            return made
    answer = NotImplemented
    if mode.answer is not None:
        answer = mode.answer(func, args, kwargs, error)
    if answer is NotImplemented:
        refuse_ragged_number(func, error)
        if func._schema.is_mutable and "(different element sizes)" in str(error):
            raise turned_elsewhere(func) from error
        return NotImplemented
    with mode:
        return tree_map_only(torch.Tensor, FunctionalTensor.to_functional, answer)


def _of_zeros(mode: Any, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """What an op gives of zeros without memory, which torch's formulas make below every mode."""
    leaves = tree_leaves((args, kwargs))
    zeros = [t for t in leaves if isinstance(t, torch.Tensor) and t._is_zerotensor()]
    if not zeros or func._schema.is_mutable:
        return NotImplemented
    with mode:
        filled = {
            id(tensor): torch.zeros(tensor.shape, dtype=tensor.dtype, device=tensor.device)
            for tensor in zeros
        }
        args, kwargs = tree_map_only(
            torch.Tensor, lambda tensor: filled.get(id(tensor), tensor), (args, kwargs)
        )
        return func(*args, **kwargs)
