"""``as_strided`` by elements instead of memory: ``lower`` writes it so for compilers.

A graph for a compiler is functional: where an intermediate lies, and whether a view of it is one,
is the compiler's choice. Inductor takes an offset as if each view were memory of its own.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from math import prod
from typing import Any

import torch
from torch import fx
from torch.fx.node import map_arg

from funcaot._torch.tensors.sizes.shapes import SizeError
from funcaot.aot.graph import graphs
from funcaot.aot.graph.tensor_spec import is_dense, may_overlap

__all__ = ["by_elements"]

aten = torch.ops.aten

# What a view shows of the same elements in other places; its own op isn't one that reads them.
_REINTERPRETING = {
    aten.view.dtype,
    aten.view_as_real.default,
    aten.view_as_complex.default,
    aten._conj.default,
    aten._neg_view.default,
}


@dataclass(frozen=True)
class _Window:
    """Which elements of a tensor without gaps an ``as_strided`` shows, counted in memory.

    Attributes:
        size: Its sizes.
        stride: Its strides.
        start: The first element.
    """

    size: tuple[int, ...]
    stride: tuple[int, ...]
    start: int

    @property
    def lengths(self) -> list[int]:
        """Elements from the first to the last, for all dimensions from each one on."""
        found = [1]
        for size, stride in zip(reversed(self.size), reversed(self.stride), strict=True):
            found.append((size - 1) * stride + found[-1])
        return found[::-1]

    def lies_in(self, count: int) -> bool:
        """Whether a tensor of so many elements has them all."""
        return 0 in self.size or (self.start >= 0 and self.start + self.lengths[0] <= count)

    def read(self, flat: torch.Tensor) -> torch.Tensor:
        """A view of the elements."""
        if 0 in self.size:
            return flat[:0].reshape(self.size)
        lengths = self.lengths
        found = flat.narrow(0, self.start, lengths[0])
        for size, stride, rest in zip(self.size, self.stride, lengths[1:], strict=True):
            if size == 1 or stride == 0:
                found = found.unsqueeze(-2).expand(*found.shape[:-1], size, rest)
            elif stride == rest:
                found = found.unflatten(-1, (size, stride))
            else:
                found = found.unfold(-1, rest, stride)
        return found.squeeze(-1)

    def write(self, flat: torch.Tensor, source: torch.Tensor) -> torch.Tensor | None:
        """A copy with other values there; None if two of them are for one element."""
        if 0 in self.size:
            return flat.clone()
        joined = self._joined()
        if len(joined) == 1:
            ((size, stride),) = joined
            end = self.start + (size - 1) * stride + 1
            return torch.slice_scatter(flat, source.reshape(-1), 0, self.start, end, stride)
        if may_overlap(self.size, self.stride):
            return None
        index = torch.full((), self.start, device=flat.device)
        for size, stride in joined:
            steps = torch.arange(size, device=flat.device) * stride
            index = index.unsqueeze(-1) + steps
        return flat.index_put((index.reshape(-1),), source.reshape(-1))

    def _joined(self) -> list[tuple[int, int]]:
        """Sizes and strides, with dimensions that lie end to end as one."""
        found: list[tuple[int, int]] = []
        for size, stride in zip(self.size, self.stride, strict=True):
            if size == 1:
                continue
            if found and found[-1][1] == size * stride:
                found[-1] = (found[-1][0] * size, stride)
            else:
                found.append((size, stride))
        return found or [(1, 1)]


def by_elements(node: fx.Node, made: Callable[[fx.Node], Any]) -> torch.Tensor | None:
    """The result of an ``as_strided`` or ``as_strided_scatter``, by other ops.

    Args:
        node: Its node.
        made: The tensor that stands for an earlier node.

    Returns:
        None for any other node, and for what is read as it lies: inputs with gaps or beyond what
        they show, and for open sizes inputs and what is no view.

    Raises:
        SizeError: An offset in a view, with open sizes; none of what it was made of has no gaps.
    """
    if node.target is aten.as_strided.default:
        return _read(node, made)
    if node.target is aten.as_strided_scatter.default:
        return _written(node, made)
    return None


def _read(node: fx.Node, made: Callable[[fx.Node], Any]) -> torch.Tensor | None:
    place = _place(node, *node.args[1:], **node.kwargs)
    if place is None:
        return _read_open(node, made, *node.args[1:], **node.kwargs)
    dtype = graphs.value_of(node).dtype
    source: fx.Node | None = node.args[0]  # type: ignore[assignment]
    while source is not None and source.op != "get_attr":
        value = graphs.value_of(source)
        if value.dtype != dtype:
            return None
        order = _memory_order(value)
        start = place.start - value.storage_offset()
        window = _Window(place.size, place.stride, start)
        if order is not None and window.lies_in(value.numel()):
            return window.read(made(source).permute(order).reshape(-1))
        source = None if source.target in _REINTERPRETING else graphs.view_source(source)
    return None


def _read_open(
    node: fx.Node,
    made: Callable[[fx.Node], Any],
    size: Any,
    stride: Any,
    storage_offset: Any = None,
) -> torch.Tensor | None:
    root = graphs.view_root(node)
    if storage_offset is None or root is node.args[0] or root.op != "call_function":
        return None
    value = graphs.value_of(root)
    if value.dtype != graphs.value_of(node).dtype or not is_dense(value.shape, value.stride()):
        raise SizeError(
            "A place in the memory of a view is named by as_strided.",
            remedy="compile with dynamic=False, or leave the storage offset out.",
        )
    numbers = map_arg((size, stride, storage_offset), made)
    return made(root).as_strided(*numbers)


def _written(node: fx.Node, made: Callable[[fx.Node], Any]) -> torch.Tensor | None:
    target, source, *numbers = node.args
    place = _place(node, *numbers, **node.kwargs)
    if place is None or not isinstance(target, fx.Node) or not isinstance(source, fx.Node):
        return None
    value = graphs.value_of(target)
    order = _memory_order(value)
    window = _Window(place.size, place.stride, place.start - value.storage_offset())
    if order is None or not window.lies_in(value.numel()):
        return None
    ordered = made(target).permute(order)
    flat = window.write(ordered.reshape(-1), made(source))
    if flat is None:
        return None
    back = sorted(range(len(order)), key=order.__getitem__)
    return flat.reshape(ordered.shape).permute(back)


def _place(node: fx.Node, size: Any, stride: Any, storage_offset: Any = None) -> _Window | None:
    """What is named, counted from the begin of the storage; None where a size is open."""
    value = graphs.value_of(node.args[0])  # type: ignore[arg-type]
    start = value.storage_offset() if storage_offset is None else storage_offset
    numbers = (*size, *stride, start, *value.shape, *value.stride())
    if not all(isinstance(number, int) for number in numbers):
        return None
    return _Window(tuple(size), tuple(stride), start)


def _memory_order(value: torch.Tensor) -> list[int] | None:
    """The dimensions in the order in which a tensor lies; None for gaps and open sizes."""
    shape, stride = tuple(value.shape), tuple(value.stride())
    numbers = (*shape, *stride, value.storage_offset())
    if not all(isinstance(number, int) for number in numbers):
        return None
    if prod(shape) and not is_dense(shape, stride):
        return None
    return sorted(range(len(shape)), key=lambda dim: -stride[dim])
