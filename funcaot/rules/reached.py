"""Tensors inside of objects and functions, where no level and no tape can unwrap them."""

from __future__ import annotations

import functools
import types
from collections.abc import Iterable, Iterator
from enum import Enum
from typing import Any

import torch

from funcaot._torch.levels.functorch import (
    has_tangent,
    is_functorch_wrapped_tensor,
    layers,
    requires_grad_at_any_level,
    unwrap_if_dead,
)
from funcaot.errors import UnsupportedError

__all__ = ["may_hold", "refuse_closed_over", "tensors_reached"]

_DEPTH = 4
_FIXED = (type, types.ModuleType, torch.dtype, torch.device, torch.Size, Enum, str, int, float)


def may_hold(value: Any) -> bool:
    """Whether there may be tensors inside of a value."""
    return value is not None and not isinstance(value, _FIXED)


def tensors_reached(values: Iterable[Any]) -> Iterator[torch.Tensor]:
    """Tensors that objects hold and functions close over, a few steps deep."""
    return _held(values, _DEPTH, set())


def refuse_closed_over(what: str, functions: Iterable[Any]) -> None:
    """Refuse rules that close over what a transform in progress looks at.

    Raises:
        UnsupportedError: Below its level such a tensor has no meaning, and no gradient of it comes
            back.
    """
    for tensor in tensors_reached(functions):
        if _is_looked_at(tensor):
            raise UnsupportedError(
                f"{what} closes over a tensor that a transform in progress differentiates or "
                "batches.",
                remedy="make it an argument.",
            )


def _is_looked_at(tensor: torch.Tensor) -> bool:
    if not is_functorch_wrapped_tensor(tensor) or unwrap_if_dead(tensor) is not tensor:
        return False
    if any(layer.kind == "batch" for layer in layers(tensor)):
        return True
    return requires_grad_at_any_level(tensor) or has_tangent(tensor)


def _held(values: Any, depth: int, seen: set[int]) -> Iterator[torch.Tensor]:
    """Tensors that objects and functions reach."""
    for value in values:
        if isinstance(value, torch.Tensor):
            yield value
            continue
        if id(value) in seen or depth == 0 or not may_hold(value):
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
