"""Shapes that eager refuses and symbolic tensors take; ``as_eager_takes`` and masks ask here.

Symbolic tensors compare the strides of neighbouring dimensions only, so that a dimension of size 1
between two others hides that these can't be viewed as one. A mask that has become indices has no
shape any more, so it is compared before. Whether a value fits to where it is written by index is
left to the compiler, which speaks of its own code.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch.utils._python_dispatch import _disable_current_modes
from torch.utils._pytree import tree_leaves, tree_map

from funcaot._torch.tracing.eager_rules.eager_strides import present_number
from funcaot._torch.tracing.eager_rules.on_zeros import few_zeros

__all__ = ["mask_shape", "refuse_index", "refuse_masks", "refuse_view", "zeros_of"]

aten = torch.ops.aten

_MASKS = (torch.bool, torch.uint8)


def refuse_view(x: torch.Tensor, shape: Any) -> None:
    """Raise what eager raises for a view that the strides of a tensor don't allow.

    Args:
        x: The tensor.
        shape: The shape of the view, with -1 for a size that follows from the others.

    Raises:
        RuntimeError: Eager's own.
    """
    if x.layout is not torch.strided or not any(type(s) is int and s == 1 for s in x.shape):
        return
    strides = tuple(map(present_number, x.stride()))
    with _disable_current_modes():
        like = torch.empty_strided(_present(x), strides, dtype=x.dtype, device="meta")
        like.view([present_number(size) for size in shape])


def refuse_masks(source: torch.Tensor, key: tuple[Any, ...]) -> None:
    """Raise what eager raises for masks of other shapes than what they select of.

    Args:
        source: What is indexed.
        key: The parts of the index.

    Raises:
        IndexError: Eager's own.
    """
    from torch.fx.experimental.symbolic_shapes import guard_or_true  # It imports SymPy.

    rest = source.dim() - sum(map(_dims_of, key))
    dim = 0
    for part in key:
        dims, shape = _dims_of(part), mask_shape(part)
        if shape is not None:
            pairs = zip(shape, source.shape[dim : dim + dims], strict=False)
            if dim + dims > source.dim() or not all(guard_or_true(a == b) for a, b in pairs):
                with _disable_current_modes():
                    zeros_of(source)[tree_map(zeros_of, key)]
        dim += rest if part is Ellipsis else dims


def mask_shape(part: Any) -> Sequence[Any] | None:
    """The shape of a mask among the parts of an index, a list of truth values say; else None."""
    if isinstance(part, torch.Tensor):
        return part.shape if part.dtype in _MASKS and part.dim() else None
    if not isinstance(part, list | tuple):
        return None
    leaves = tree_leaves(part)
    if not leaves or not all(type(leaf) is bool for leaf in leaves):
        return None
    shape = []
    while isinstance(part, list | tuple):
        shape.append(len(part))
        part = part[0] if part else None
    return shape


def refuse_index(
    source: torch.Tensor, indices: Sequence[torch.Tensor | None], *value: torch.Tensor
) -> None:
    """Raise what eager raises for indexes, and a value written there, that don't fit.

    Args:
        source: What is indexed.
        indices: A tensor of indexes or a mask for a dimension, or None.
        value: What is written, if something is.

    Raises:
        IndexError: Eager's own, for indexes.
        RuntimeError: Eager's own, for a value.
    """
    if any(index is not None and index.dtype in _MASKS for index in indices):
        refuse_masks(source, tuple(slice(None) if i is None else i for i in indices))
    elif not _fits(source, indices, *value):
        with _disable_current_modes():
            given = tree_map(zeros_of, (source, list(indices), *value))
            (aten.index_put if value else aten.index)(*given)


def _fits(
    source: torch.Tensor, indices: Sequence[torch.Tensor | None], *value: torch.Tensor
) -> bool:
    """Whether indexes go together, and a value with what they select."""
    sizes = _present(source)
    dims = [dim for dim, index in enumerate(indices) if index is not None]
    if not dims or len(indices) > len(sizes):
        return not dims
    try:
        chosen = torch.broadcast_shapes(*(_present(indices[dim]) for dim in dims))
        if 0 in (sizes[dim] for dim in dims) and 0 not in chosen:
            return False
        first = dims[0] if dims == list(range(dims[0], dims[-1] + 1)) else 0
        rest = [size for dim, size in enumerate(sizes) if dim not in dims]
        selected = (*rest[:first], *chosen, *rest[first:])
        return all(torch.broadcast_shapes(_present(v), selected) == selected for v in value)
    except RuntimeError:
        return False


def _dims_of(part: Any) -> int:
    """How many dimensions a part of an index takes; an ellipsis takes what is left."""
    shape = mask_shape(part)
    if shape is not None:
        return len(shape)
    if part is None or part is Ellipsis or isinstance(part, bool):
        return 0
    return 0 if isinstance(part, torch.Tensor) and part.dtype in _MASKS else 1


def zeros_of(value: Any) -> Any:
    """As many zeros as a tensor has, in its shape; a number as it is in this call."""
    if not isinstance(value, torch.Tensor):
        return few_zeros(value)
    return torch.zeros(_present(value), dtype=value.dtype)


def _present(tensor: Any) -> tuple[int, ...]:
    return tuple(map(present_number, tensor.shape))
