"""A tensor's place in flat memory, rebuilt by view ops that compose.

``as_strided`` would do in one step, but functionalization refuses to write through a chain of
views that has one. So a layout is rebuilt from ``narrow``, ``view``, ``permute`` and the like.
"""

from __future__ import annotations

import math

import torch

from funcaot.aot.graph.tensor_spec import contiguous_stride


def extent(shape: tuple[int, ...], stride: tuple[int, ...]) -> int:
    """Elements from the first to the last that a layout reaches."""
    if 0 in shape:
        return 0
    return 1 + sum((size - 1) * step for size, step in zip(shape, stride, strict=True))


def placed(
    flat: torch.Tensor, shape: tuple[int, ...], stride: tuple[int, ...], offset: int
) -> torch.Tensor:
    """A view of flat memory with a given layout.

    Args:
        flat: One-dimensional.
        shape: Sizes of the view.
        stride: Strides of the view, counted in elements of ``flat``.
        offset: Of its first element in ``flat``.

    Returns:
        The view; by ``as_strided`` if nothing that composes makes it.
    """
    if stride == contiguous_stride(shape):
        return flat.narrow(0, offset, math.prod(shape)).view(shape)
    order = sorted(
        (dim for dim, size in enumerate(shape) if size != 1 and stride[dim] != 0),
        key=lambda dim: -stride[dim],
    )
    dims = [(shape[dim], stride[dim]) for dim in order]
    dense = _columns(flat, dims, offset) if dims else flat.select(0, offset)
    if dense is None:
        unit = flat.stride(0)
        steps = [step * unit for step in stride]
        return flat.as_strided(shape, steps, flat.storage_offset() + offset * unit)
    rank = len(order)
    dense = dense.permute([order.index(dim) for dim in sorted(order)]) if rank > 1 else dense
    for dim, size in enumerate(shape):
        if size == 1 or stride[dim] == 0:
            dense = dense.unsqueeze(dim)
    return dense.expand(shape) if dense.shape != shape else dense


def _columns(rows: torch.Tensor, dims: list[tuple[int, int]], offset: int) -> torch.Tensor | None:
    """Dimensions of descending stride inside the last one of ``rows``, if each fits in one step."""
    (size, step), inner = dims[0], dims[1:]
    reach = 1 + sum((n - 1) * s for n, s in inner)
    last = rows.dim() - 1
    if not inner:
        if step == 1:
            return rows.narrow(last, offset, size)
        stop = offset + (size - 1) * step + 1
        return rows[(..., slice(offset, stop, step))]
    total = rows.shape[last]
    start = min(offset, total - size * step)
    if reach > step or start < 0 or offset - start + reach > step:
        return None
    # Splitting a narrowed dimension keeps strides: unflatten is a view here.
    split = rows.narrow(last, start, size * step).unflatten(last, (size, step))
    return _columns(split, inner, offset - start)
