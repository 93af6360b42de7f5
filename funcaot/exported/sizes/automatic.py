"""Dims that are left to the capture (``Dim.AUTO``); ``export`` captures again with what it found.

The function says what such a dim is: equal to another one, one number, or at least some number.
"""

from __future__ import annotations

import dataclasses
import itertools
from collections.abc import Mapping, Sequence
from typing import Any

from funcaot._torch.tensors.sizes import shapes
from funcaot.exported.sizes.open_dim import UNBOUNDED, OpenDim

Wanted = Mapping[int, Mapping[int, OpenDim]]
# How far the least size is raised until a condition is always true.
_RAISED = 64


class NarrowedError(Exception):
    """A capture found out what dims are; it is made again with these.

    Attributes:
        dims: By name, what they are; None for a size that is a number.
    """

    def __init__(self, dims: Mapping[str, OpenDim | None]) -> None:
        """Keep the dims."""
        super().__init__(", ".join(dims))
        self.dims = dims

    def applied(self, wanted: Wanted) -> Wanted:
        """Open dimensions, by tensor, as they are now known."""
        return {
            tensor: {
                position: found
                for position, dim in dims.items()
                if (found := self._now(dim)) is not None
            }
            for tensor, dims in wanted.items()
        }

    def _now(self, dim: OpenDim) -> OpenDim | None:
        root = self.dims.get(dim.root) if dim.root else None
        return self.dims.get(dim.name, dim) if root is None else dim.within(root)


def narrow(condition: Any, symbols: Sequence[Any], dims: Sequence[OpenDim]) -> None:
    """See whether dims can be such that a condition is always true, and the example's still are.

    Args:
        condition: What a capture assumed.
        symbols: The symbols in it.
        dims: Their dims.

    Raises:
        NarrowedError: If they can.
    """
    if all(dim.is_named for dim in dims):
        return
    if len(dims) == 2 and shapes.is_equality(condition, *symbols):
        _make_one(*dims)
    if len(dims) == 2:
        for (symbol, dim), (other, root) in itertools.permutations(zip(symbols, dims, strict=True)):
            found = shapes.multiple_of(condition, symbol, other)
            if found is not None and not dim.is_named:
                _make_derived(dim, root, *found)
    if len(dims) == 1:
        (dim,) = dims
        if dim.may_be_closed and shapes.is_equality(condition, *symbols):
            raise NarrowedError({dim.name: None})
        for low in range(dim.low + 1, min(dim.high, dim.low + _RAISED, dim.example) + 1):
            if shapes.is_always(condition, {symbols[0]: (low, dim.high)}):
                raise NarrowedError({dim.name: dataclasses.replace(dim, low=low)})


def _make_one(first: OpenDim, second: OpenDim) -> None:
    kept, other = (second, first) if second.is_named else (first, second)
    low, high = max(first.low, second.low), min(first.high, second.high)
    if not kept.is_named:
        kept = dataclasses.replace(kept, low=low, high=high)
    if (kept.low, kept.high) == (low, high) and not other.is_named:
        raise NarrowedError({first.name: kept, second.name: kept})


def _make_derived(dim: OpenDim, root: OpenDim, scale: int, shift: int) -> None:
    """Compute a dim from another one, whose sizes become those for which it is in its bounds."""
    low = max(root.low, -((shift - dim.low) // scale))
    high = root.high
    if dim.high < UNBOUNDED:
        high = min(high, (dim.high - shift) // scale)
    if root.is_named and (low, high) != (root.low, root.high):
        return
    root = dataclasses.replace(root, low=low, high=high)
    made = dataclasses.replace(dim, root=root.name, scale=scale, shift=shift).within(root)
    raise NarrowedError({root.name: root, dim.name: made})
