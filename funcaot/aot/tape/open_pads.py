"""Padding by amounts that sizes decide; a tape records it as this says.

Where no amount is positive, eager cuts and copies, and the copy lies in memory as the tensor does.
Torch's symbolic version asks that of plain numbers only: of others it makes a contiguous tensor.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch

__all__ = ["OPEN_PADS"]

aten = torch.ops.aten


def _constant_pad(tensor: torch.Tensor, pad: Sequence[Any], value: Any = 0) -> Any:
    """The sign of each amount is a condition of the program then."""
    if not any(isinstance(amount, torch.SymInt) for amount in pad) or tensor.is_contiguous():
        return NotImplemented
    if not all(amount <= 0 for amount in pad):
        return NotImplemented
    for place in range(len(pad) // 2):
        dim = tensor.dim() - 1 - place
        before, after = -pad[2 * place], -pad[2 * place + 1]
        tensor = aten.narrow(tensor, dim, before, tensor.shape[dim] - before - after)
    return aten.clone.default(tensor)


OPEN_PADS: dict[Any, Callable[..., Any]] = {aten.constant_pad_nd.default: _constant_pad}
