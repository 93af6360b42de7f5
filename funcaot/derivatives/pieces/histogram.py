"""``histogram`` and ``histogramdd``: by weights, and by the range that the edges are laid over.

Which bin an element is in is constant between jumps. Its weight counts there, divided by the total
and by the size of the bin where a density is asked for.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from funcaot.derivatives.table import Derivative, register
from funcaot.derivatives.ways import transposed

aten = torch.ops.aten
Maybe = Tensor | None


def _edges(x: Tensor, bins: int, given: Sequence[float] | None) -> Tensor:
    """Between the least and the largest element where no range is given."""
    if given is not None:
        low, high = (torch.tensor(end, dtype=x.dtype, device=x.device) for end in given)
    elif x.numel() == 0:
        low, high = x.new_zeros(()), x.new_ones(())
    else:
        low, high = x.amin(), x.amax()
    # Torch widens a range of one point.
    apart = (low != high).to(x.dtype)
    low, high = low - 0.5 * (1 - apart), high + 0.5 * (1 - apart)
    # From both ends, which are met exactly.
    steps = torch.arange(bins + 1, dtype=x.dtype, device=x.device)
    step = (high - low) / bins
    return torch.where(steps < (bins + 1) // 2, low + step * steps, high - step * (bins - steps))


def _counted(points: Tensor, edges: Sequence[Tensor], weight: Maybe, density: bool) -> Tensor:
    """The weights in each bin; the last dimension of the points is that of the bins."""
    shape = [edge.shape[0] - 1 for edge in edges]
    place = torch.zeros(points.shape[:-1], dtype=torch.long, device=points.device)
    inside = torch.ones_like(place, dtype=torch.bool)
    for axis, edge in enumerate(edges):
        edge, coordinate = edge.detach().contiguous(), points[..., axis].detach().contiguous()
        found = torch.searchsorted(edge, coordinate, right=True) - 1
        found = torch.where(coordinate == edge[-1], shape[axis] - 1, found)
        inside = inside & (found >= 0) & (found < shape[axis])
        place = place * shape[axis] + found.clamp(0, shape[axis] - 1)
    if weight is None:
        weight = torch.ones_like(place, dtype=points.dtype)
    counted = torch.where(inside, weight.reshape(place.shape), 0.0).reshape(-1)
    empty = counted.new_zeros(torch.Size(shape).numel())
    hist = empty.index_add(0, place.reshape(-1), counted).reshape(shape)
    if density:
        hist = hist / hist.sum()
        for axis, edge in enumerate(edges):
            along = [1] * len(shape)
            along[axis] = -1
            hist = hist / edge.diff().view(along)
    return hist


def _by_count(
    x: Tensor,
    bins: int = 100,
    *,
    range: Sequence[float] | None = None,
    weight: Maybe = None,
    density: bool = False,
) -> tuple[Tensor, Tensor]:
    edges = _edges(x, bins, range)
    return _counted(x.unsqueeze(-1), [edges], weight, density), edges


def _by_edges(
    x: Tensor, bins: Tensor, *, weight: Maybe = None, density: bool = False
) -> tuple[Tensor, Tensor]:
    return _counted(x.unsqueeze(-1), [bins], weight, density), bins.clone()


def _all_edges(
    x: Tensor,
    bins: Sequence[int],
    *,
    range: Sequence[float] | None = None,
    weight: Maybe = None,
    density: bool = False,
) -> tuple[Tensor, ...]:
    flat = x.reshape(-1, x.shape[-1])
    ends = [None if range is None else range[2 * axis : 2 * axis + 2] for axis in _axes(bins)]
    return tuple(_edges(flat[:, axis], bins[axis], ends[axis]) for axis in _axes(bins))


def _axes(bins: Sequence[Any]) -> list[int]:
    return [*range(len(bins))]


def _by_counts(x: Tensor, bins: Sequence[int], **keywords: Any) -> Tensor:
    edges = _all_edges(x, bins, range=keywords.get("range"))
    return _counted(x, edges, keywords.get("weight"), keywords.get("density", False))


def _by_all_edges(
    x: Tensor, bins: Sequence[Tensor], *, weight: Maybe = None, density: bool = False
) -> Tensor:
    return _counted(x, bins, weight, density)


def _one_by_one(op: Any) -> Any:
    """The op for a batch, whose examples have edges of their own."""

    def batched(size: int, in_dims: tuple[Any, dict[str, Any]], *args: Any, **keywords: Any) -> Any:
        dims, named = in_dims
        found = [
            op(
                *(_example(value, dim, at) for value, dim in zip(args, dims, strict=True)),
                **{name: _example(value, named[name], at) for name, value in keywords.items()},
            )
            for at in range(size)
        ]
        if not isinstance(found[0], tuple):
            stacked, dim = _stacked(found)
            return (stacked,), (dim,)
        return tuple(zip(*map(_stacked, zip(*found, strict=True)), strict=True))

    return batched


def _stacked(examples: Sequence[Any]) -> tuple[Any, Any]:
    """A tensor or a list of them, for the batch, and its dimensions."""
    if isinstance(examples[0], Tensor):
        return torch.stack(list(examples)), 0
    stacked = [torch.stack(list(parts)) for parts in zip(*examples, strict=True)]
    return stacked, [0] * len(stacked)


def _example(value: Any, dim: Any, at: int) -> Any:
    if isinstance(dim, list):
        return [_example(part, d, at) for part, d in zip(value, dim, strict=True)]
    return value if dim is None else value.select(dim, at)


for _op, _formula in (
    (aten.histogram.bin_ct, _by_count),
    (aten.histogram.bins_tensor, _by_edges),
):
    register(Derivative(_op, _formula, jvp=transposed(_formula)))
for _op, _formula in (
    (aten._histogramdd_bin_edges.default, _all_edges),
    (aten._histogramdd_from_bin_cts.default, _by_counts),
    (aten._histogramdd_from_bin_tensors.default, _by_all_edges),
):
    register(Derivative(_op, _formula, jvp=transposed(_formula), batched=_one_by_one(_op)))
for _overload in ("default", "int_bins", "TensorList_bins"):
    _op = getattr(aten.histogramdd, _overload)
    register(Derivative(_op, batched=_one_by_one(_op)))
