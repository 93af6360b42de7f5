"""Products over the ragged dimension of two jagged tensors: an op that reads lengths when it runs.

``TapeFunctionalMode`` asks here before a jagged tensor takes an op apart. Torch multiplies row by
row, whose lengths and number a graph would have as constants: each batch would be a program.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch.library import Library, register_fake

__all__ = ["by_own_op"]

_PRODUCTS = (torch.ops.aten.matmul.default, torch.ops.aten.bmm.default)

_library = Library("funcaot", "FRAGMENT")
_library.define("ragged_product(Tensor left, Tensor right, Tensor offsets) -> Tensor")


def _row_by_row(left: torch.Tensor, right: torch.Tensor, offsets: torch.Tensor) -> torch.Tensor:
    """The product of each row of a batch, as torch computes it.

    Args:
        left: ``[m, total]``, the rows of a batch side by side.
        right: ``[total, n]``.
        offsets: Where rows begin and end, ``[rows + 1]``.

    Returns:
        ``[rows, m, n]``.
    """
    lengths = offsets.diff().tolist()
    pairs = zip(left.split(lengths, dim=1), right.split(lengths), strict=True)
    with torch.no_grad():
        return torch.stack([one @ other for one, other in pairs])


def _shape(left: torch.Tensor, right: torch.Tensor, offsets: torch.Tensor) -> torch.Tensor:
    return left.new_empty((offsets.shape[0] - 1, left.shape[0], right.shape[1]))


_library.impl("ragged_product", _row_by_row, "CompositeExplicitAutograd")
register_fake("funcaot::ragged_product", _shape, lib=_library)


def by_own_op(mode: Any, func: Any, args: Sequence[Any]) -> Any:
    """What an op of wrappers gives, where a jagged tensor would take it apart into its rows.

    Args:
        mode: The functionalization that was asked, which isn't active.
        func: The op.
        args: Its arguments, below autograd.

    Returns:
        The batch of products, or ``NotImplemented``.
    """
    if func not in _PRODUCTS or not _sums_over_rows(*args):
        return NotImplemented
    left, right = args
    with mode:
        return torch.ops.funcaot.ragged_product(left._values, right._values, left._offsets)


def _sums_over_rows(left: Any, right: Any) -> bool:
    """Whether torch multiplies ``[rows, m, ragged]`` and ``[rows, ragged, n]`` row by row."""
    if not (_is_packed(left, 2) and _is_packed(right, 1)):
        return False
    return bool(left.size(2) == right.size(1)) and left.dtype == right.dtype


def _is_packed(jagged: Any, ragged: int) -> bool:
    return (
        getattr(jagged, "layout", None) is torch.jagged
        and jagged.dim() == 3
        and jagged._ragged_idx == ragged
        and jagged._lengths is None
    )
