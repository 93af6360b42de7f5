"""``embedding_bag``: derivatives of its backwards, and forward mode."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from funcaot.derivatives.table import Derivative, register
from funcaot.derivatives.ways import transposed
from funcaot.errors import UnsupportedError

aten = torch.ops.aten
MEAN, MAX = 1, 2


def _dense_backward(arriving: Tensor, indices: Tensor, offset2bag: Tensor, *rest: Any) -> Tensor:
    bag_size, maximum_indices, num_weights, scale_grad_by_freq, mode, weights, *padding = rest
    padding_idx = padding[0] if padding else -1
    if scale_grad_by_freq:
        raise UnsupportedError(
            "The gradient of embedding_bag with scale_grad_by_freq was differentiated: torch's "
            "kernel for the CPU divides by the counts of other rows than it should.",
            remedy="leave scale_grad_by_freq out, and scale the gradient of the table.",
        )
    table = arriving.new_zeros((num_weights, arriving.shape[1]))
    if mode == MAX:
        chosen = maximum_indices.to(torch.int64)
        filled = (chosen >= 0) & (bag_size > 0).unsqueeze(1)
        pushed = torch.where(filled, arriving, torch.zeros_like(arriving))
        return table.scatter_add(0, chosen.clamp(min=0), pushed)
    pushed = arriving[offset2bag]
    if mode == MEAN:
        pushed = pushed / bag_size[offset2bag].clamp(min=1).unsqueeze(1)
    if weights is not None:
        pushed = pushed * weights.unsqueeze(1)
    pushed = pushed * (indices != padding_idx).unsqueeze(1)
    return table.index_add(0, indices, pushed)


def _backward(
    arriving: Tensor,
    indices: Tensor,
    offsets: Tensor,
    offset2bag: Tensor,
    *rest: Any,
) -> Tensor:
    """The dense form, also of a table whose gradient torch gives as a sparse tensor."""
    bag_size, maximum, count, by_frequency, mode, _, weights, *padding = rest
    offset2bag = _bags(indices, offsets, offset2bag)
    return _dense_backward(
        arriving, indices, offset2bag, bag_size, maximum, count, by_frequency, mode, weights,
        *padding,
    )  # fmt: skip


def _bags(indices: Tensor, offsets: Tensor, offset2bag: Tensor) -> Tensor:
    """Which bag each index is in, which torch's kernels leave out for sums."""
    if offset2bag.shape[0] == indices.shape[0]:
        return offset2bag
    places = torch.arange(indices.shape[0], device=indices.device, dtype=offsets.dtype)
    return torch.searchsorted(offsets, places, right=True) - 1


def _weights_backward(
    arriving: Tensor, weight: Tensor, indices: Tensor, offsets: Tensor, *rest: Any
) -> Tensor:
    offset2bag, _, *padding = rest
    padding_idx = padding[0] if padding else -1
    offset2bag = _bags(indices, offsets, offset2bag)
    products = (arriving[offset2bag] * weight[indices]).sum(1)
    return products * (indices != padding_idx)


register(
    Derivative(
        aten._embedding_bag.default, jvp=transposed(aten._embedding_bag.default), reverse=False
    )
)
register(Derivative(aten._embedding_bag_backward.default, _backward))
register(Derivative(aten._embedding_bag_dense_backward.default, _dense_backward))
register(Derivative(aten._embedding_bag_per_sample_weights_backward.default, _weights_backward))
