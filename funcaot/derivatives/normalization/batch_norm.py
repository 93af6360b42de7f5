"""Batch norm in training: derivatives from the third on, tangents that can be pushed forward again.

Torch's formulas take the statistics of the forward for constants when they are differentiated.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from funcaot.derivatives.normalization.statistics import (
    Maybe,
    affine,
    differentiated_below,
    gradients,
    in_front,
    of_batch,
    precise,
    pushed,
)
from funcaot.derivatives.table import Derivative, register

aten = torch.ops.aten


def _dims(value: Tensor) -> tuple[int, ...]:
    return (0, *range(2, value.dim()))


def _by_channel(value: Tensor, tensor: Tensor) -> Tensor:
    """A tensor with an element per channel, to multiply with."""
    return tensor.reshape(1, -1, *[1] * (value.dim() - 2))


def _maybe(value: Tensor, tensor: Maybe) -> Maybe:
    return None if tensor is None else _by_channel(value, tensor)


def _jvp(tangents: Sequence[Maybe], value: Tensor, *rest: Any) -> Maybe:
    weight, _, mean, variance, trains, _, eps = rest
    moved, *by_affine = (*tangents, None, None, None)[:3]
    wide, along = precise(value), None if moved is None else precise(moved)
    if trains:
        normal, along = pushed(wide, along, _dims(value), eps)
    else:
        scale = _by_channel(value, torch.rsqrt(variance + eps))
        normal = (wide - _by_channel(value, mean)) * scale
        along = None if along is None else along * scale
    channels = (_maybe(value, tensor) for tensor in (weight, *by_affine))
    found = affine(normal, along, *channels)
    return None if found is None else found.to(value.dtype)


def _backward(
    arriving: Tensor, value: Tensor, weight: Maybe, *rest: Any
) -> tuple[Maybe, Maybe, Maybe]:
    mean, variance, _, _, trains, eps, mask = rest
    sent, wide = precise(arriving), precise(value)
    multiplied = _maybe(value, None if weight is None else precise(weight))
    if trains:
        by_value, by_weight = gradients(
            sent, wide, multiplied, _dims(value), lambda found: torch.rsqrt(found + eps)
        )
    else:
        scale = _by_channel(value, torch.rsqrt(variance + eps))
        by_value = sent * scale if multiplied is None else sent * multiplied * scale
        by_weight = sent * ((wide - _by_channel(value, mean)) * scale)
    dtype = value.dtype if weight is None else weight.dtype
    return (
        by_value.to(value.dtype) if mask[0] else None,
        by_weight.sum(_dims(value)).to(dtype) if mask[1] else None,
        sent.sum(_dims(value)).to(dtype) if mask[2] else None,
    )


def _batched_backward(
    size: int, in_dims: tuple[Sequence[int | None], Any], *args: Any
) -> tuple[tuple[Maybe, ...], tuple[int | None, ...]]:
    """The gradients for a batch, by statistics that move with the input."""
    trains, eps, mask = args[7:]
    if not trains or not differentiated_below(args[:7]):
        return NotImplemented
    arriving, value, weight = (in_front(args[i], in_dims[0][i]) for i in range(3))
    sent, wide = precise(arriving), precise(value)  # type: ignore[arg-type]
    dims = (1, *range(3, wide.dim()))
    multiplied = None
    if weight is not None:
        channels = [1] * (wide.dim() - 3)
        multiplied = precise(weight).reshape(weight.shape[0], 1, -1, *channels)
    by_value, by_weight = gradients(
        sent, wide, multiplied, dims, lambda found: torch.rsqrt(found + eps)
    )
    dtype = args[1].dtype if weight is None else weight.dtype
    found = (
        by_value.to(args[1].dtype) if mask[0] else None,
        by_weight.sum(dims).to(dtype) if mask[1] else None,
        sent.sum(dims).to(dtype) if mask[2] else None,
    )
    return of_batch(found, size)


register(Derivative(aten.native_batch_norm.default, jvp=_jvp, reverse=False))
register(
    Derivative(
        aten.native_batch_norm_backward.default, _backward, later=True, batched=_batched_backward
    )
)
