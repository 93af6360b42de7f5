"""Kinds of operators, and private ones, as they appear in graphs."""

from __future__ import annotations

import functools
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import torch
from torch._higher_order_ops.effects import (
    _get_effect,  # pyright: ignore[reportPrivateUsage]
)
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
    "acts",
    "formula_of",
    "is_op",
    "op_writing_to_lists",
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


# Namespaces whose ops without results are checks, bounds of sizes, and ends of a profiler's ranges:
# optimizers open one around each step, and a program has no use for them.
_OF_TORCH = frozenset({"aten", "prims", "prim", "inductor", "debugprims", "profiler"})


@functools.cache
def _is_made_to_act(op: OpOverload) -> bool:
    schema = op._schema
    returns_nothing = not schema.returns and op.namespace not in _OF_TORCH
    return returns_nothing and not schema.is_mutable and op not in CHECKS


def acts(op: Any) -> bool:
    """Whether an op is called for what it does outside of tensors, as one that writes a log.

    It says so (``register_effect``), or returns nothing and writes to no argument.
    """
    if not isinstance(op, OpOverload):
        return False
    if _is_made_to_act(op):
        return True
    return not op._schema.is_mutable and op not in CHECKS and _get_effect(op) is not None


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


@functools.cache
def op_writing_to_lists(func: Any) -> Any:
    """The op behind a function that writes to lists of tensors, or one of its overloads."""
    packet = getattr(torch.ops.aten, getattr(func, "__name__", "").split(".")[0] or "_", None)
    if isinstance(func, OpOverload):
        overloads = [func]
    elif isinstance(packet, OpOverloadPacket):
        overloads = [getattr(packet, name) for name in packet.overloads()]
    else:
        return None
    writing = filter(_writes_to_lists, overloads)
    return next(writing, None)


def _writes_to_lists(op: Any) -> bool:
    return any(
        argument.alias_info is not None and isinstance(argument.type, torch.ListType)
        for argument in op._schema.arguments
    )


def formula_of(name: str) -> Any:
    """A function of torch as its compilers compute it, in Python."""
    return getattr(torch._refs, name)  # type: ignore[attr-defined]
