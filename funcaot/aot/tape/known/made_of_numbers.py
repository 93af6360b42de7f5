"""Whole numbers in tensors that a function makes of numbers alone; reading them asks no values.

``torch.tensor(x.shape[0])`` and what is computed of it are as well known as the size is: the
handlers of ``item``, ``int`` and ``tolist`` get an open number, and nothing is brought from the
call. The ops are done on Python's numbers, in arrays of objects.
"""

from __future__ import annotations

import math
import operator
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import torch
from torch import fx

from funcaot._torch.tensors.ops import OpOverload
from funcaot._torch.tracing import tracing
from funcaot.aot.graph import graphs

__all__ = ["numbers_in"]

# What is larger isn't a list of sizes, and may overflow.
_MOST_ELEMENTS = 64
_LARGEST = 2**53

_ATEN = torch.ops.aten


class _UnknownError(Exception):
    """An op or a number that isn't done here; nobody else sees it."""


def numbers_in(node: fx.Node, root: torch.nn.Module) -> Any:
    """The whole numbers in a tensor, if the function made it of numbers alone.

    Args:
        node: The tensor's node.
        root: The module that owns the graph's constants.

    Returns:
        A number or, of a tensor with dimensions, lists of them; None if they aren't known so.
    """
    found: dict[fx.Node, np.ndarray] = {}
    try:
        for each in sorted(graphs.closure([node], ())):
            if isinstance(graphs.value_of(each), torch.Tensor) or each.op == "get_attr":
                found[each] = _checked(_computed(each, root, found))
    except _UnknownError:
        return None
    return found[node].tolist() if node in found else None


def _computed(node: fx.Node, root: torch.nn.Module, found: dict[fx.Node, np.ndarray]) -> np.ndarray:
    if node.op == "get_attr":
        return _of_constant(getattr(root, str(node.target), None))
    value = graphs.value_of(node)
    if node.op != "call_function" or value.dtype is not torch.int64:
        raise _UnknownError
    if not isinstance(node.target, OpOverload) or (rule := _RULES.get(node.target)) is None:
        raise _UnknownError

    def given(argument: Any) -> Any:
        if isinstance(argument, fx.Node):
            return found[argument] if argument in found else graphs.value_of(argument)
        if isinstance(argument, list | tuple):
            return [given(each) for each in argument]
        return argument

    return _array(rule(*map(given, node.args), **{k: given(v) for k, v in node.kwargs.items()}))


def _of_constant(tensor: Any) -> np.ndarray:
    if not isinstance(tensor, torch.Tensor) or tensor.dtype is not torch.int64:
        raise _UnknownError
    if tensor.numel() > _MOST_ELEMENTS or tensor.layout is not torch.strided:
        raise _UnknownError
    with tracing.disable_current_modes():
        return _array(np.array(tensor.tolist(), dtype=object))


def _array(value: Any) -> np.ndarray:
    """An array of no dimensions is one number to NumPy."""
    if isinstance(value, np.ndarray):
        return value
    found = np.empty((), dtype=object)
    found[()] = value
    return found


def _checked(array: np.ndarray) -> np.ndarray:
    if array.size > _MOST_ELEMENTS:
        raise _UnknownError
    for number in array.flat:
        if type(number) is not torch.SymInt and not (
            type(number) is int and abs(number) < _LARGEST
        ):
            raise _UnknownError
    return array


def _elementwise(function: Callable[..., Any]) -> Callable[..., Any]:
    def run(*operands: Any, alpha: int = 1) -> Any:
        if type(alpha) is not int or alpha != 1:
            raise _UnknownError
        for operand in operands:
            if not isinstance(operand, np.ndarray | int | torch.SymInt):
                raise _UnknownError
        return np.frompyfunc(function, len(operands), 1)(*map(_array, operands))

    return run


def _quotient(number: Any, divisor: Any, *, rounding_mode: Any = "floor") -> Any:
    if rounding_mode != "floor":
        raise _UnknownError
    return _elementwise(_floor)(number, divisor)


def _floor(number: Any, divisor: Any) -> Any:
    if not divisor:
        raise _UnknownError
    return number // divisor


def _rest(number: Any, divisor: Any) -> Any:
    if not divisor:
        raise _UnknownError
    return number % divisor


def _limited(number: Any, low: Any = None, high: Any = None) -> Any:
    if low is not None:
        number = _GREATEST(number, low)
    return number if high is None else _LEAST(number, high)


def _plain(size: Any) -> Any:
    """Shapes are known: a list of an open length is another's."""
    if type(size) is not int:
        raise _UnknownError
    return size


def _filled(size: Sequence[Any], value: Any, **_: Any) -> np.ndarray:
    if isinstance(value, bool | float | complex | torch.SymFloat | torch.SymBool):
        raise _UnknownError
    shape = tuple(map(_plain, size))
    if math.prod(shape) > _MOST_ELEMENTS:
        raise _UnknownError
    found = np.empty(shape, dtype=object)
    found.fill(value)
    return found


def _reduced(function: Callable[[Any, Any], Any], first: int) -> Callable[..., Any]:
    def run(array: np.ndarray, dim: Any = None, keepdim: bool = False, **_: Any) -> Any:
        axes = range(array.ndim) if dim is None or dim == [] else np.atleast_1d(dim)
        found = array
        for axis in sorted((int(axis) % max(array.ndim, 1) for axis in axes), reverse=True):
            found = _along(function, first, found, axis, keepdim)
        return found

    return run


def _along(
    function: Callable[[Any, Any], Any], first: int, array: np.ndarray, axis: int, keepdim: bool
) -> np.ndarray:
    if not array.ndim:
        return array
    rows = np.moveaxis(array, axis, 0)
    found = np.full(rows.shape[1:], first, dtype=object)
    for row in rows:
        found = _array(np.frompyfunc(function, 2, 1)(found, _array(row)))
    return np.expand_dims(found, axis) if keepdim else found


def _running(array: np.ndarray, dim: int, **_: Any) -> np.ndarray:
    found = array.copy()
    if array.ndim:
        rows = np.moveaxis(found, dim, 0)
        for place in range(1, len(rows)):
            rows[place] = rows[place - 1] + rows[place]
    return found


def _selected(array: np.ndarray, dim: int, index: Any) -> Any:
    return np.take(array, _plain(index), axis=dim)


def _sliced(
    array: np.ndarray, dim: int = 0, start: Any = None, end: Any = None, step: int = 1
) -> np.ndarray:
    first, last = (None if end is None else _plain(end) for end in (start, end))
    where: list[slice] = [slice(None)] * array.ndim
    where[dim] = slice(first, last, _plain(step))
    return array[tuple(where)]


def _shaped(array: np.ndarray, size: Sequence[Any]) -> np.ndarray:
    return array.reshape(tuple(map(_plain, size)))


def _expanded(array: np.ndarray, size: Sequence[Any], **_: Any) -> np.ndarray:
    sizes = [_plain(each) for each in size]
    ahead = len(sizes) - array.ndim
    shape = [array.shape[place - ahead] if each == -1 else each for place, each in enumerate(sizes)]
    if math.prod(shape) > _MOST_ELEMENTS:
        raise _UnknownError
    return np.broadcast_to(array, shape)


def _same(array: np.ndarray, **_: Any) -> np.ndarray:
    return array


def _squeezed(array: np.ndarray, dim: Any = None) -> np.ndarray:
    if dim is None:
        return array.squeeze()
    axes = (int(axis) % max(array.ndim, 1) for axis in np.atleast_1d(dim))
    return array.squeeze(tuple(axis for axis in axes if array.ndim and array.shape[axis] == 1))


_ADD, _SUBTRACT = _elementwise(operator.add), _elementwise(operator.sub)
_MULTIPLY = _elementwise(operator.mul)
_LEAST, _GREATEST = _elementwise(torch.sym_min), _elementwise(torch.sym_max)

_RULES: dict[OpOverload, Callable[..., Any]] = {
    _ATEN.full.default: _filled,
    _ATEN.scalar_tensor.default: lambda value, **_: _filled((), value),
    **dict.fromkeys(
        (
            *(_ATEN.lift_fresh.default, _ATEN.lift_fresh_copy.default, _ATEN.clone.default),
            *(_ATEN.alias.default, _ATEN.detach.default, _ATEN._to_copy.default),
        ),
        _same,
    ),
    **dict.fromkeys((_ATEN.add.Tensor, _ATEN.add.Scalar), _ADD),
    **dict.fromkeys((_ATEN.sub.Tensor, _ATEN.sub.Scalar), _SUBTRACT),
    **dict.fromkeys(
        (_ATEN.rsub.Tensor, _ATEN.rsub.Scalar),
        lambda number, other, alpha=1: _SUBTRACT(other, number, alpha=alpha),
    ),
    **dict.fromkeys((_ATEN.mul.Tensor, _ATEN.mul.Scalar), _MULTIPLY),
    _ATEN.neg.default: _elementwise(operator.neg),
    **dict.fromkeys((_ATEN.div.Tensor_mode, _ATEN.div.Scalar_mode), _quotient),
    **dict.fromkeys((_ATEN.floor_divide.default, _ATEN.floor_divide.Scalar), _quotient),
    **dict.fromkeys((_ATEN.remainder.Tensor, _ATEN.remainder.Scalar), _elementwise(_rest)),
    _ATEN.minimum.default: _LEAST,
    _ATEN.maximum.default: _GREATEST,
    **dict.fromkeys((_ATEN.clamp.default, _ATEN.clamp.Tensor), _limited),
    **dict.fromkeys((_ATEN.clamp_min.default, _ATEN.clamp_min.Tensor), _GREATEST),
    **dict.fromkeys((_ATEN.clamp_max.default, _ATEN.clamp_max.Tensor), _LEAST),
    **dict.fromkeys((_ATEN.sum.default, _ATEN.sum.dim_IntList), _reduced(operator.add, 0)),
    **dict.fromkeys((_ATEN.prod.default, _ATEN.prod.dim_int), _reduced(operator.mul, 1)),
    _ATEN.cumsum.default: _running,
    _ATEN.stack.default: lambda arrays, dim=0: np.stack(arrays, axis=dim),
    _ATEN.cat.default: lambda arrays, dim=0: np.concatenate(arrays, axis=dim),
    _ATEN.select.int: _selected,
    _ATEN.slice.Tensor: _sliced,
    **dict.fromkeys(
        (_ATEN.view.default, _ATEN._unsafe_view.default, _ATEN.reshape.default), _shaped
    ),
    _ATEN.expand.default: _expanded,
    _ATEN.unsqueeze.default: lambda array, dim: np.expand_dims(array, dim),
    **dict.fromkeys((_ATEN.squeeze.default, _ATEN.squeeze.dim, _ATEN.squeeze.dims), _squeezed),
    _ATEN.flip.default: lambda array, dims: np.flip(array, tuple(dims)),
    _ATEN.permute.default: lambda array, dims: array.transpose(dims),
}
