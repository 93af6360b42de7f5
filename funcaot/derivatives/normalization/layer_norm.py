"""Layer norm: derivatives from the third on, and tangents that can be pushed forward again.

Torch's formulas take the statistics of the forward for constants when they are differentiated.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
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


def _dims(value: Tensor, shape: Sequence[int]) -> tuple[int, ...]:
    return tuple(range(value.dim() - len(shape), value.dim()))


def _jvp(
    tangents: Sequence[Maybe],
    value: Tensor,
    shape: Sequence[int],
    weight: Maybe = None,
    bias: Maybe = None,
    eps: float = 1e-5,
) -> Maybe:
    moved, _, by_weight, by_bias = (*tangents, None, None, None, None)[:4]
    along = None if moved is None else precise(moved)
    normal, along = pushed(precise(value), along, _dims(value, shape), eps)
    found = affine(normal, along, weight, by_weight, by_bias)
    return None if found is None else found.to(value.dtype)


def _backward(
    arriving: Tensor, value: Tensor, shape: Sequence[int], *rest: Any
) -> tuple[Maybe, Maybe, Maybe]:
    _, scale, weight, _, mask = rest
    scale_of = _scales(scale)
    sent, wide = precise(arriving), precise(value)
    multiplied = None if weight is None else precise(weight)
    by_value, by_weight = gradients(sent, wide, multiplied, _dims(value, shape), scale_of)
    outer = tuple(range(value.dim() - len(shape)))
    like = value if weight is None else weight
    return (
        by_value.to(value.dtype) if mask[0] else None,
        _summed(by_weight, outer).to(like.dtype) if mask[1] else None,
        _summed(sent, outer).to(like.dtype) if mask[2] else None,
    )


def _scales(scale: Tensor) -> Callable[[Tensor], Tensor]:
    """The reciprocal deviations as a function of variances, from what they were in the forward."""

    def scale_of(variance: Tensor) -> Tensor:
        known = scale.detach().reshape(*scale.shape[:1], *variance.shape[1:])
        # The kernel doesn't say what was added to the variances, but what came out.
        return torch.rsqrt(variance + (known**-2 - variance.detach()))

    return scale_of


def _batched_backward(
    size: int, in_dims: tuple[Sequence[int | None], Any], *args: Any
) -> tuple[tuple[Maybe, ...], tuple[int | None, ...]]:
    """The gradients for a batch, by statistics that move with the input."""
    if not differentiated_below((*args[:2], *args[3:7])):
        return NotImplemented
    places, (shape, mask) = in_dims[0], (args[2], args[7])
    arriving, value, scale, weight = (in_front(args[i], places[i]) for i in (0, 1, 4, 5))
    sent, wide = precise(arriving), precise(value)  # type: ignore[arg-type]
    outer = tuple(range(1, wide.dim() - len(shape)))
    multiplied = None
    if weight is not None:
        multiplied = precise(weight).reshape(weight.shape[0], *[1] * len(outer), *shape)
    dims = tuple(range(-len(shape), 0))
    by_value, by_weight = gradients(sent, wide, multiplied, dims, _scales(scale))  # type: ignore[arg-type]
    like = args[1] if weight is None else weight
    found = (
        by_value.to(args[1].dtype) if mask[0] else None,
        _summed(by_weight, outer).to(like.dtype) if mask[1] else None,
        _summed(sent, outer).to(like.dtype) if mask[2] else None,
    )
    return of_batch(found, size)


def _summed(tensor: Tensor, dims: tuple[int, ...]) -> Tensor:
    return tensor.sum(dims) if dims else tensor


register(Derivative(aten.native_layer_norm.default, jvp=_jvp, reverse=False))
register(
    Derivative(
        aten.native_layer_norm_backward.default, _backward, later=True, batched=_batched_backward
    )
)
