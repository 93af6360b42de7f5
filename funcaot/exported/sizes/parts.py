"""Sizes in parts, each with a program of its own: ``export`` captures once for each part.

A function may do something else for a few sizes: where ``x[1:]`` has one row, torch takes another
way. A capture is right for the sizes around its example; the others are captured for themselves.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch

from funcaot._torch.tensors.pytree import tree_map
from funcaot._torch.tensors.sizes import shapes
from funcaot.errors import UnsupportedError
from funcaot.exported.call import ExportedCall
from funcaot.exported.sizes.automatic import Wanted
from funcaot.exported.sizes.open_dim import OpenDim

# By name the least and the largest size of each dim.
Box = Mapping[str, tuple[int, int]]
# The most programs of one artifact.
MOST = 8
# How far the least size is raised until a condition is always true.
_RAISED = 16
# How far above the least one a size may be the only one of its part.
_NEAR = 2
# A further part is captured for a size so much above its least one, if it has such.
_ABOVE = 6


class PartError(Exception):
    """A capture is right for a part of the sizes only.

    Attributes:
        box: That part, around the example.
        refusal: What the user is told if there is no program for the others.
    """

    def __init__(self, box: Box, refusal: UnsupportedError) -> None:
        """Keep both."""
        super().__init__(str(refusal))
        self.box, self.refusal = box, refusal


def part_of(
    condition: Any,
    dims: Mapping[Any, OpenDim],
    sizes: Mapping[Any, int],
    holds: Callable[..., bool] | None,
) -> tuple[str, tuple[int, int]] | None:
    """Sizes of one dim, around those of the example, for which a condition is true.

    Args:
        condition: What a capture assumed.
        dims: The dim of each symbol in it.
        sizes: The size of each in the example.
        holds: The condition as a function of all of them, where all sizes can be tried.

    Returns:
        The dim and its bounds; None if they aren't found.
    """
    if holds is not None and len(dims) == 1:
        ((symbol, dim),) = dims.items()
        low = high = sizes[symbol]
        while low > dim.low and holds((low - 1,)):
            low -= 1
        while high < dim.high and holds((high + 1,)):
            high += 1
        return dim.name, (low, high)
    ranges = {symbol: (dim.low, dim.high) for symbol, dim in dims.items()}
    for symbol, dim in dims.items():
        for low in range(dim.low + 1, min(dim.high, dim.low + _RAISED, sizes[symbol]) + 1):
            if shapes.is_always(condition, {**ranges, symbol: (low, dim.high)}):
                return dim.name, (low, dim.high)
    return None


def split(whole: Box, part: Box) -> list[dict[str, tuple[int, int]]] | None:
    """The rest of some sizes beside a part of them, in parts.

    Returns:
        None for a part that is one size in the middle: the next one would be another.
    """
    rest: list[dict[str, tuple[int, int]]] = []
    left = dict(whole)
    for name, (low, high) in part.items():
        least, largest = left[name]
        if low == high and least + _NEAR < low and high < largest:
            return None
        if least < low:
            rest.append({**left, name: (least, low - 1)})
        if high < largest:
            rest.append({**left, name: (high + 1, largest)})
        left[name] = (low, high)
    return rest


def narrowed(call: ExportedCall, wanted: Wanted, box: Box) -> tuple[ExportedCall, Wanted]:
    """The call with its dims within a part of the sizes, and an example of such sizes.

    A dim of which one size is left is closed.
    """
    named = {dim.name: dim for dims in wanted.values() for dim in dims.values()}
    roots = {
        name: dataclasses.replace(named[name], low=low, high=high)
        for name, (low, high) in box.items()
    }
    made: dict[int, torch.Tensor] = {}
    opened: dict[int, dict[int, OpenDim]] = {}

    def resized(leaf: Any) -> Any:
        dims = wanted.get(id(leaf))
        if dims is None:
            return leaf
        if id(leaf) not in made:
            now = {at: _within(dim, roots) for at, dim in dims.items()}
            found = made[id(leaf)] = _of_sizes(leaf, now, roots)
            opened[id(found)] = {at: dim for at, dim in now.items() if dim.low < dim.high}
        return made[id(leaf)]

    args, kwargs = tree_map(resized, (call.args, call.kwargs))
    return dataclasses.replace(call, args=args, kwargs=kwargs), opened


def _within(dim: OpenDim, roots: Mapping[str, OpenDim]) -> OpenDim:
    return dim.within(roots[dim.root]) if dim.root else roots.get(dim.name, dim)


def _of_sizes(
    tensor: torch.Tensor, dims: Mapping[int, OpenDim], roots: Mapping[str, OpenDim]
) -> torch.Tensor:
    """The example with other sizes, which lies in memory in the same order."""
    found = tensor.detach()
    for position, dim in dims.items():
        size = tensor.shape[position]
        if dim.low <= size <= dim.high:
            continue
        root = roots[dim.root] if dim.root else dim
        size = dim.of(_example(root)) if dim.root else _example(root)
        rows = torch.arange(size) % tensor.shape[position]
        found = found.index_select(position, rows)
    if found.shape == tensor.shape:
        return tensor
    order = sorted(range(tensor.dim()), key=lambda at: -tensor.stride(at))
    back = sorted(range(len(order)), key=order.__getitem__)
    found = found.permute(order).contiguous().permute(back)
    return found.requires_grad_(tensor.requires_grad)


def _example(dim: OpenDim) -> int:
    return min(dim.high, dim.low + _ABOVE)


def whole_of(dims: Sequence[OpenDim]) -> dict[str, tuple[int, int]]:
    """All sizes of dims that aren't computed from others."""
    return {dim.name: (dim.low, dim.high) for dim in dims if not dim.root}
