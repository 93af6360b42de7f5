"""Functions that are given objects with tensors inside, called in a capture as eager calls them.

A solver is given a function that closes over tensors of the program; a dropout is given an object
and keeps its mask there. No level can unwrap such tensors, so the call isn't one node of a tape but
what its forward does, with the Function's own backward in autograd's record of it.
"""

from __future__ import annotations

import functools
import types
from collections.abc import Iterator
from enum import Enum
from typing import Any

import torch

from funcaot._torch.functorch import (
    FakeTensor,
    FunctionalTensor,
    is_functorch_wrapped_tensor,
    pytree,
)
from funcaot.opaque import current_captor
from funcaot.operator import custom_function_call
from funcaot.plan import CallPlan

__all__ = ["call_in_capture"]

_DEPTH = 4
_FIXED = (type, types.ModuleType, torch.dtype, torch.device, torch.Size, Enum, str, int, float)


def call_in_capture(plan: CallPlan, operands: tuple[Any, ...], otherwise: Any) -> Any:
    """Call a Function, as eager does if an operand holds tensors of the program or comes to.

    Args:
        plan: How the Function is called.
        operands: What it is given.
        otherwise: Calls it as a node.
    """
    objects = [leaf for leaf in _leaves(operands) if _may_hold(leaf)]
    if not objects:
        return otherwise()
    if any(_is_traced(tensor) for tensor in _held(objects, _DEPTH, set())):
        return _plainly(plan, operands)
    before = [(value, dict(fields)) for value in objects if (fields := _fields(value)) is not None]
    result = otherwise()
    written = [
        fields
        for value, fields in before
        if any(new is not fields.get(name, value) for name, new in vars(value).items())
    ]
    if not written or not any(
        isinstance(tensor, FakeTensor) for tensor in _held(objects, _DEPTH, set())
    ):
        return result
    for value, fields in before:
        vars(value).clear()
        vars(value).update(fields)
    return _plainly(plan, operands)


def _plainly(plan: CallPlan, operands: tuple[Any, ...]) -> Any:
    captor = current_captor()
    if captor is None:
        return plan.native(*operands)
    with captor.calling():
        return plan.native(*operands)


def _leaves(operands: tuple[Any, ...]) -> list[Any]:
    return [leaf for leaf in pytree.tree_leaves(operands) if not isinstance(leaf, torch.Tensor)]


def _may_hold(value: Any) -> bool:
    return value is not None and not isinstance(value, _FIXED)


def _fields(value: Any) -> dict[str, Any] | None:
    """What an object's own attributes are, if it is one that forward may write to."""
    if isinstance(value, (types.FunctionType, types.MethodType, torch.nn.Module)):
        return None
    fields = getattr(value, "__dict__", None)
    return fields if isinstance(fields, dict) else None


def _is_traced(tensor: torch.Tensor) -> bool:
    return isinstance(tensor, FunctionalTensor) or is_functorch_wrapped_tensor(tensor)


def _held(values: Any, depth: int, seen: set[int]) -> Iterator[torch.Tensor]:
    """Tensors that objects and functions reach."""
    for value in values:
        if isinstance(value, torch.Tensor):
            yield value
            continue
        if id(value) in seen or depth == 0 or not _may_hold(value):
            continue
        seen.add(id(value))
        yield from _held(_reached_from(value), depth - 1, seen)


def _reached_from(value: Any) -> list[Any]:
    if isinstance(value, types.MethodType):
        return [value.__self__, value.__func__]
    if isinstance(value, functools.partial):
        return [value.func, *value.args, *value.keywords.values()]
    if isinstance(value, types.FunctionType):
        cells = [cell.cell_contents for cell in value.__closure__ or () if _is_filled(cell)]
        defaults = (value.__defaults__ or (), (value.__kwdefaults__ or {}).values())
        return [*cells, *defaults[0], *defaults[1]]
    if isinstance(value, dict):
        return list(value.values())
    if isinstance(value, (list, tuple, set, frozenset)):
        return list(value)
    fields = getattr(value, "__dict__", None)
    return list(fields.values()) if isinstance(fields, dict) else []


def _is_filled(cell: types.CellType) -> bool:
    try:
        cell.cell_contents  # noqa: B018
    except ValueError:
        return False
    return True


custom_function_call.register("in_capture")(call_in_capture)
