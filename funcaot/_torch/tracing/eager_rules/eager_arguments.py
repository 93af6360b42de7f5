"""Arguments that eager refuses or takes and symbolic ops don't; ``FunctionalMode`` asks here.

A source of another shape is refused by ``index_add`` and ``slice_scatter``; fake tensors broadcast
it. They take dimensions that a tensor doesn't have (``softmax``, ``sort``). An index without
dimensions is one index to ``index_add``, and an error to its decomposition. Kernels refuse dtypes
that fake tensors and compiled code take (``frac`` of integers), so an op with others than one of
the usual ones is tried on a few zeros, once for its dtypes.
"""

from __future__ import annotations

import functools
import math
import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch._subclasses.functional_tensor import FunctionalTensorMode
from torch.utils._pytree import tree_leaves, tree_map

from funcaot._torch.tracing.eager_rules.checked_values import with_checked_values
from funcaot._torch.tracing.eager_rules.eager_shapes import refuse_index, refuse_view, zeros_of
from funcaot._torch.tracing.eager_rules.eager_strides import present_number
from funcaot._torch.tracing.eager_rules.number_ranges import refuse_numbers
from funcaot._torch.tracing.eager_rules.on_zeros import few_zeros, run_on_zeros

__all__ = ["as_eager_takes"]

aten = torch.ops.aten

_ADDING = frozenset({aten.index_add.default, aten.index_add_.default})
_BY_INDEX = frozenset(
    {
        aten.index.Tensor,
        aten.index_put.default,
        aten.index_put_.default,
        aten._index_put_impl_.default,
    }
)

_USUAL: tuple[set[torch.dtype], ...] = (set(), {torch.float32}, {torch.float64})
_ABOUT_DTYPES = re.compile(r"not implemented for '|dtype|scalar type|\b\w+Tensor for ")
# Ops and dtypes that a kernel took, and how many of them are kept.
_TAKEN: set[tuple[Any, ...]] = set()
_MOST = 1 << 14
# They take every dtype, and make as much as a number says.
_AS_LARGE_AS_SAID = frozenset(
    {
        aten.new_empty,
        aten.new_zeros,
        aten.new_ones,
        aten.new_full,
        aten.repeat,
        aten.new_empty_strided,
    }
)
# Elements of arguments that are tried in their own shapes.
_SMALL = 1 << 12


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
        Exception: Eager's own, for shapes, dtypes or numbers that don't fit.
    """
    _refuse_dtypes(func, args, kwargs)
    _refuse_shapes(func, args, kwargs)
    refuse_numbers(func, args, kwargs)
    args = with_checked_values(mode, func, args, kwargs)
    if func is aten.expand.default and not isinstance(args[0], torch.Tensor):
        # An end of `linspace` under vmap: torch hands a tensor that is a number on as a number.
        dtype = torch.complex128 if isinstance(args[0], complex) else torch.float64
        with mode:
            return (torch.scalar_tensor(args[0], dtype=dtype), *args[1:])
    if func is aten._new_zeros_with_same_feature_meta.default:
        return _with_room(mode, args)
    go_together = _SHAPES.get(func)
    if go_together is None:
        return args
    if not all(value.layout is torch.strided for value in args if isinstance(value, torch.Tensor)):
        return args
    given = tree_map(_without_memory, list(args)), tree_map(_without_memory, dict(kwargs))
    if not go_together(*given[0], **given[1]):
        run_on_zeros(func, args, kwargs, zeros_of)
    if func in _ADDING and args[2].dim() == 0:
        with mode:
            return (*args[:2], aten.unsqueeze.default(args[2], 0), *args[3:])
    return args


def _refuse_shapes(func: Any, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> None:
    """Raise what eager raises for an op's shapes, where symbolic tensors take them."""
    if func is aten.view.default:
        refuse_view(*args)
    elif func in _BY_INDEX:
        refuse_index(*args[:3])
    elif func.namespace == "aten" and _beyond(func, args, kwargs):
        try:
            run_on_zeros(func, args, kwargs)
        except IndexError as error:
            if "out of range" in str(error):
                raise IndexError(*error.args) from None
        except (RuntimeError, TypeError, ValueError):
            return  # of what isn't a dimension


@functools.cache
def _place_of_dim(func: Any) -> int | None:
    """Where an op takes a dimension of its first argument."""
    arguments = func._schema.arguments
    for place, argument in enumerate(arguments):
        if argument.name == "dim" and str(argument.type) == "int":
            return place if str(arguments[0].type) == "Tensor" else None
    return None


def _beyond(func: Any, args: Sequence[Any], kwargs: Mapping[str, Any]) -> bool:
    """Whether an op may have been given a dimension that its tensor doesn't have."""
    place = _place_of_dim(func)
    if place is None or torch.Tag.nondeterministic_seeded in func.tags:
        return False
    dim = kwargs.get("dim", args[place] if place < len(args) else 0)
    dims = max(1, args[0].dim())
    return type(dim) is int and not -dims <= dim < dims


def _with_room(mode: FunctionalTensorMode, args: tuple[Any, ...]) -> tuple[Any, ...]:
    """What a tangent's memory is made for: zeros lie dense in eager, and expanded on the way here.

    Autograd writes the tangent to that memory, which needs a place for each element.
    """
    other = args[1]
    pairs = zip(other.shape, other.stride(), strict=True)
    if other.layout is not torch.strided or not any(s > 1 and step == 0 for s, step in pairs):
        return args
    with mode:
        dense = aten.empty_like.default(other, memory_format=torch.contiguous_format)
    return (args[0], dense, *args[2:])


def _refuse_dtypes(func: Any, args: Sequence[Any], kwargs: Mapping[str, Any]) -> None:
    """Raise what eager raises for an op's dtypes."""
    leaves = tree_leaves((args, kwargs))
    tensors = [leaf for leaf in leaves if isinstance(leaf, torch.Tensor)]
    dtypes = {tensor.dtype for tensor in tensors}
    if dtypes in _USUAL or func.namespace != "aten":
        return
    if torch.Tag.nondeterministic_seeded in func.tags or not all(map(_has_kernels, tensors)):
        return
    if func.overloadpacket in _AS_LARGE_AS_SAID:
        return
    key = (func, *map(_kind, leaves))
    if key in _TAKEN:
        return
    small = sum(math.prod(map(present_number, tensor.shape)) for tensor in tensors) <= _SMALL
    zeros = zeros_of if small else few_zeros
    try:
        run_on_zeros(func, args, kwargs, zeros)
    except (RuntimeError, IndexError, TypeError, ValueError) as error:
        if _ABOUT_DTYPES.search(str(error)):
            raise type(error)(*error.args) from None
        return
    if len(_TAKEN) >= _MOST:
        _TAKEN.clear()
    _TAKEN.add(key)


def _has_kernels(tensor: torch.Tensor) -> bool:
    """Whether the ops that it is given to are those of the CPU."""
    return tensor.device.type == "cpu" and tensor.layout is torch.strided


def _kind(leaf: Any) -> Any:
    if isinstance(leaf, torch.Tensor):
        return leaf.dtype
    return leaf if isinstance(leaf, torch.dtype) else type(leaf)


def _takes_slices(
    x: torch.Tensor, dim: int, index: torch.Tensor, source: torch.Tensor, *how: Any, **settings: Any
) -> bool:
    """Whether slices of the right shape are added or reduced, one for each index."""
    if not index.dim() or not x.dim() or x.dim() != source.dim():
        return False
    if not -x.dim() <= dim < x.dim():
        return False
    shape = list(x.shape)
    shape[dim] = index.numel()
    return shape == list(source.shape)


def _replaces(part_of: Callable[..., torch.Tensor]) -> Callable[..., bool]:
    """Whether the second argument has the shape of a part of the first."""

    def fits(x: torch.Tensor, part: torch.Tensor, *place: Any, **named: Any) -> bool:
        try:
            return part_of(x, *place, **named).shape == part.shape
        except (RuntimeError, IndexError):
            return False

    return fits


def _as_many(x: torch.Tensor, index: torch.Tensor, source: torch.Tensor, *how: Any) -> bool:
    return index.numel() == source.numel()


def _one_row(x: torch.Tensor, boundaries: torch.Tensor, **settings: Any) -> bool:
    return boundaries.dim() == 1


# Whether the shapes of an op's arguments go together; eager refuses the others.
_SHAPES: dict[Any, Callable[..., bool]] = {
    aten.index_add.default: _takes_slices,
    aten.index_add_.default: _takes_slices,
    aten.index_reduce.default: _takes_slices,
    aten.index_reduce_.default: _takes_slices,
    aten.slice_scatter.default: _replaces(aten.slice.Tensor),
    aten.select_scatter.default: _replaces(aten.select.int),
    aten.diagonal_scatter.default: _replaces(aten.diagonal.default),
    aten.soft_margin_loss.default: _replaces(lambda x, *_: x),
    aten.put.default: _as_many,
    aten.put_.default: _as_many,
    aten.bucketize.Tensor: _one_row,
}


def _without_memory(value: Any) -> Any:
    if isinstance(value, torch.SymInt):
        return present_number(value)
    if not isinstance(value, torch.Tensor):
        return value
    return torch.empty(tuple(map(present_number, value.shape)), device="meta")
