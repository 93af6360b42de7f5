"""Arguments that eager refuses or takes and symbolic ops don't; ``FunctionalMode`` asks here.

A source of another shape is refused by ``index_add`` and ``slice_scatter``; fake tensors broadcast
it. An index without dimensions is one index to ``index_add``, and an error to its decomposition.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch._subclasses.functional_tensor import FunctionalTensorMode
from torch.utils._python_dispatch import _disable_current_modes
from torch.utils._pytree import tree_map

from funcaot._torch.tracing.eager_strides import present_number

__all__ = ["as_eager_takes"]

aten = torch.ops.aten

_ADDING = frozenset({aten.index_add.default, aten.index_add_.default})
# What part of their first argument these replace by the second.
_PARTS: dict[Any, Callable[..., torch.Tensor]] = {
    aten.slice_scatter.default: aten.slice.Tensor,
    aten.select_scatter.default: aten.select.int,
    aten.diagonal_scatter.default: aten.diagonal.default,
}


def as_eager_takes(
    mode: FunctionalTensorMode, func: Any, args: tuple[Any, ...], kwargs: Mapping[str, Any]
) -> tuple[Any, ...]:
    """An op's arguments as its symbolic version wants them.

    Args:
        mode: The functionalization that runs the op, which isn't active.
        func: The op.
        args: Its arguments, functional tensors among them.
        kwargs: Its keywords.

    Raises:
        Exception: Eager's own, for shapes that don't fit.
    """
    if func not in _ADDING and func not in _PARTS:
        return args
    if not all(value.layout is torch.strided for value in args if isinstance(value, torch.Tensor)):
        return args
    given = tree_map(_without_memory, list(args)), tree_map(_without_memory, dict(kwargs))
    if not (_adds_slices if func in _ADDING else _fits(func))(*given[0], **given[1]):
        with _disable_current_modes(), torch.no_grad():
            func(*tree_map(_zeros, list(args)), **tree_map(_zeros, dict(kwargs)))
    if func in _ADDING and args[2].dim() == 0:
        with mode:
            return (*args[:2], aten.unsqueeze.default(args[2], 0), *args[3:])
    return args


def _adds_slices(
    x: torch.Tensor, dim: int, index: torch.Tensor, source: torch.Tensor, **settings: Any
) -> bool:
    """Whether slices of the right shape are added, one for each index."""
    if not index.dim() or not x.dim() or x.dim() != source.dim():
        return False
    shape = list(x.shape)
    shape[dim] = index.numel()
    return shape == list(source.shape)


def _fits(func: Any) -> Callable[..., bool]:
    def fits(x: torch.Tensor, part: torch.Tensor, *place: Any, **named: Any) -> bool:
        try:
            return _PARTS[func](x, *place, **named).shape == part.shape
        except (RuntimeError, IndexError):
            return False

    return fits


def _without_memory(value: Any) -> Any:
    if isinstance(value, torch.SymInt):
        return present_number(value)
    if not isinstance(value, torch.Tensor):
        return value
    return torch.empty(tuple(map(present_number, value.shape)), device="meta")


def _zeros(value: Any) -> Any:
    if isinstance(value, torch.SymInt):
        return present_number(value)
    if not isinstance(value, torch.Tensor):
        return value
    return torch.zeros(tuple(map(present_number, value.shape)), dtype=value.dtype)
