"""``_chunk_cat``, by which sharded training lays gradients beside each other, and its ``vmap``."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from funcaot.derivatives.table import Derivative, register
from funcaot.derivatives.ways import transposed

aten = torch.ops.aten
_OP = aten._chunk_cat.default


def _laid(tensors: Sequence[Tensor], dim: int, num_chunks: int) -> Tensor:
    found = []
    dim = dim % tensors[0].dim()
    for tensor in tensors:
        size = tensor.shape[dim]
        chunk = -(-size // num_chunks)
        behind = [0, 0] * (tensor.dim() - 1 - dim)
        full = torch.constant_pad_nd(tensor, [*behind, 0, chunk * num_chunks - size])
        found.append(full.reshape(*tensor.shape[:dim], num_chunks, -1))
    return torch.cat(found, -1)


def _batched(
    size: int, in_dims: Any, tensors: Sequence[Tensor], dim: int, num_chunks: int
) -> tuple[tuple[Tensor], tuple[int]]:
    """The examples are one more dimension in front of those that are cut."""
    front, places = [], in_dims[0][0]
    for tensor, place in zip(tensors, places, strict=True):
        moved = tensor.expand(size, *tensor.shape) if place is None else tensor.movedim(place, 0)
        front.append(moved)
    dim = dim % (front[0].dim() - 1)
    return (_OP(front, dim + 1, num_chunks),), (0,)


register(Derivative(_OP, _laid, jvp=transposed(_laid), batched=_batched))
