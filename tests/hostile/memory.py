"""Where results lie: in what order, how far apart, and in whose storage."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from random import Random
from typing import Any

import torch
from torch import fx

from tests.hostile.running import poison


class Results:
    """Places the results of a graph.

    Attributes:
        strides: What each result that is shown has to have, or None.
        orders: For results whose layout is free, the drawn order of dimensions and the padding.
        packs: Whether results that the graph made share a storage.
    """

    def __init__(
        self,
        module: fx.GraphModule,
        strides: Sequence[Any],
        hidden: Collection[int],
        random: Random,
        freedoms: Any,
    ) -> None:
        self.strides = strides
        self.hidden = hidden
        self.packs = freedoms.packs and random.random() < 0.5
        self.orders: dict[int, tuple[float, int]] = {}
        if freedoms.layouts:
            for index in hidden:
                # Mostly another order; at times with a gap between rows.
                padding = random.choice((0, 0, 0, 1, 3))
                self.orders[index] = (random.random(), padding)

    def placed(self, results: Sequence[Any], foreign: Collection[int]) -> list[Any]:
        """The same results, with the layouts that this executable gives them.

        Args:
            results: What the graph computed.
            foreign: The storages of inputs and constants.
        """
        placed = [self._laid_out(index, result) for index, result in enumerate(results)]
        return self._packed(placed, foreign) if self.packs else placed

    def _laid_out(self, index: int, result: Any) -> Any:
        if not isinstance(result, torch.Tensor) or result.layout is not torch.strided:
            return result
        if index not in self.hidden:
            wanted = self.strides[index]
            if wanted is None or not all(type(number) is int for number in wanted):
                return result
            return result if result.stride() == wanted else _copied(result, wanted)
        if index not in self.orders or not _is_dense(result):
            return result
        draw, padding = self.orders[index]
        order = list(range(result.dim()))
        Random(draw).shuffle(order)
        strides, step = [0] * result.dim(), 1
        for dim in reversed(order):
            strides[dim] = step
            step = step * max(result.shape[dim], 1) + (padding if step == 1 else 0)
        return _copied(result, strides)

    def _packed(self, placed: list[Any], foreign: Collection[int]) -> list[Any]:
        """Results of the executable's own, side by side in a storage for each dtype."""
        pools: dict[torch.dtype, list[int]] = {}
        for index, tensor in enumerate(placed):
            if _can_be_packed(tensor, placed, foreign):
                pools.setdefault(tensor.dtype, []).append(index)
        for dtype, indices in pools.items():
            sizes = [_extent(placed[index]) for index in indices]
            pool = torch.empty(sum(sizes) + 1, dtype=dtype, device=placed[indices[0]].device)
            poison(pool)
            offset = 1
            for index, size in zip(indices, sizes, strict=True):
                old = placed[index]
                placed[index] = pool.as_strided(old.shape, old.stride(), offset).copy_(old)
                offset += size
        return placed


def _can_be_packed(tensor: Any, placed: Sequence[Any], foreign: Collection[int]) -> bool:
    """Whether nobody else has its storage: neither an input nor another result."""
    if not isinstance(tensor, torch.Tensor) or tensor.layout is not torch.strided:
        return False
    if not _is_dense(tensor):
        return False
    storage = tensor.untyped_storage()
    if storage._cdata in foreign:
        return False
    others = [
        other
        for other in placed
        if isinstance(other, torch.Tensor)
        and other.layout is torch.strided
        and other.untyped_storage()._cdata == storage._cdata
    ]
    return len(others) == 1


def _is_dense(tensor: torch.Tensor) -> bool:
    return not any(s == 0 and n > 1 for n, s in zip(tensor.shape, tensor.stride(), strict=True))


def _extent(tensor: torch.Tensor) -> int:
    if tensor.numel() == 0:
        return 0
    return 1 + sum((n - 1) * s for n, s in zip(tensor.shape, tensor.stride(), strict=True))


def _copied(tensor: torch.Tensor, strides: Sequence[int]) -> torch.Tensor:
    new = torch.empty_strided(tensor.shape, strides, dtype=tensor.dtype, device=tensor.device)
    if 0 not in strides:
        poison(new)
    return new.copy_(tensor)
