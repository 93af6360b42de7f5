"""Random numbers in eager's order: an in-place draw fills memory in the order of its strides."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

aten = torch.ops.aten


def _bernoulli(tensor: torch.Tensor, p: float = 0.5, *, generator: Any = None) -> Any:
    """``bernoulli_``, made functional by torch, would draw for a contiguous tensor instead."""
    order = sorted(range(tensor.dim()), key=lambda dim: -tensor.stride(dim))
    if tensor.dim() < 2 or order == list(range(tensor.dim())):
        return NotImplemented
    drawn = aten.bernoulli.p(tensor.permute(order), p, generator=generator)
    return drawn.permute([order.index(dim) for dim in range(tensor.dim())])


IN_MEMORY_ORDER: dict[Any, Callable[..., Any]] = {aten.bernoulli.p: _bernoulli}
