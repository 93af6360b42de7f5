"""Kinds of operators, and private ones, as they appear in graphs."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import torch
from torch._ops import (
    HigherOrderOperator,
    OpOverload,
    OpOverloadPacket,
    _OpNamespace,  # pyright: ignore[reportPrivateUsage]
)

__all__ = [
    "CHECKS",
    "TRAINING_NORMS",
    "HigherOrderOperator",
    "OpOverload",
    "formula_of",
    "is_op",
    "written_arguments",
]

# Batch norms that return the new running statistics, behind the output and what is kept for it.
TRAINING_NORMS = (
    torch.ops.aten._native_batch_norm_legit_functional.default,
    torch.ops.aten._batch_norm_with_update_functional.default,
)

# Ops that check values.
CHECKS = frozenset(
    {
        torch.ops.aten._linalg_check_errors.default,
        torch.ops.aten._assert_async.default,
        torch.ops.aten._assert_async.msg,
    }
)


def is_op(value: Any) -> bool:
    """Whether it is an operator, all of one name, or a namespace of them."""
    kinds = (OpOverload, OpOverloadPacket, HigherOrderOperator, _OpNamespace)
    return isinstance(value, kinds) or value is torch.ops


def written_arguments(op: Any, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Iterator[Any]:
    """Of a call of an op, the arguments that it writes to, those in lists too; some may be None."""
    for position, argument in enumerate(op._schema.arguments):
        if argument.alias_info is None or not argument.alias_info.is_write:
            continue
        by_position = position < len(args) and not argument.kwarg_only
        value = args[position] if by_position else kwargs.get(argument.name)
        yield from value if isinstance(value, list | tuple) else (value,)


def formula_of(name: str) -> Any:
    """A function of torch as its compilers compute it, in Python."""
    return getattr(torch._refs, name)  # type: ignore[attr-defined]
