"""How tensors may lie in memory, and values whose tensors lie so."""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch.utils._pytree import tree_map_only


def in_order(x: Tensor, order: list[int]) -> Tensor:
    """Dense, with the dimensions in an order in memory."""
    back = [order.index(dim) for dim in range(x.dim())]
    return x.permute(order).contiguous().permute(back)


def _channels_last(x: Tensor) -> Tensor:
    formats = {4: torch.channels_last, 5: torch.channels_last_3d}
    return x.contiguous(memory_format=formats[x.dim()]) if x.dim() in formats else x


def _turned(x: Tensor) -> Tensor:
    return x.mT.contiguous().mT if x.dim() > 1 else x


def _reversed(x: Tensor) -> Tensor:
    return in_order(x, list(reversed(range(x.dim()))))


def _expanded(x: Tensor) -> Tensor:
    return x[:1].expand(x.shape) if x.dim() else x


def _expanded_within(x: Tensor) -> Tensor:
    return x[..., :1].expand(x.shape) if x.dim() else x


def _sliced(x: Tensor) -> Tensor:
    """Every other element of its memory, from the second on."""
    if not x.dim():
        return x
    wide = torch.zeros([*x.shape[:-1], 2 * x.shape[-1] + 1], dtype=x.dtype)
    return wide[..., 1::2].copy_(x)


def _cut(x: Tensor) -> Tensor:
    """Within a larger tensor."""
    if not x.dim():
        return x
    wide = torch.zeros([size + 1 for size in x.shape], dtype=x.dtype)
    return wide[tuple(slice(1, None) for _ in x.shape)].copy_(x)


def _nothing(x: Tensor) -> Tensor:
    return x.narrow(0, 0, 0) if x.dim() else x


LAYOUTS: dict[str, Callable[[Tensor], Tensor]] = {
    "contiguous": lambda x: x.contiguous(),
    "channels_last": _channels_last,
    "turned": _turned,
    "reversed": _reversed,
    "expanded": _expanded,
    "expanded_within": _expanded_within,
    "sliced": _sliced,
    "nothing": _nothing,
    "turned_nothing": lambda x: _nothing(_turned(x)),
}


def drawn_layout(x: Tensor, pick: random.Random) -> Tensor:
    """The same values, or some of them expanded, in a layout that is drawn."""
    order = list(range(x.dim()))
    pick.shuffle(order)
    ways: list[Callable[[Tensor], Tensor]] = [
        Tensor.clone,
        *[lambda x: in_order(x, order)] * 3,
        lambda x: _sliced(x.permute(order)).permute([order.index(dim) for dim in order]),
        lambda x: _cut(x.permute(order)).permute([order.index(dim) for dim in range(x.dim())]),
        _expanded,
        _expanded_within,
    ]
    return pick.choice(ways)(x)


def relaid(values: Any, layout: str, *, first: bool = False) -> tuple[Any, bool]:
    """Values whose tensors lie so, all or the first only; and whether that changed anything."""
    changed = []

    def lay(x: Tensor) -> Tensor:
        if x.layout is not torch.strided or (first and changed):
            return x.detach().clone().requires_grad_(x.requires_grad)
        value = LAYOUTS[layout](x.detach()).detach()
        changed.append(value.stride() != x.stride() or value.shape != x.shape)
        return value.requires_grad_(x.requires_grad)

    return tree_map_only(Tensor, lay, values), any(changed)
