"""Layer norm: derivatives from the third on, and tangents that can be pushed forward again.

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
    gradients,
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

    def scale_of(variance: Tensor) -> Tensor:
        known = scale.detach().reshape(variance.shape)
        # The kernel doesn't say what was added to the variances, but what came out.
        return torch.rsqrt(variance + (known**-2 - variance.detach()))

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


def _summed(tensor: Tensor, dims: tuple[int, ...]) -> Tensor:
    return tensor.sum(dims) if dims else tensor


register(Derivative(aten.native_layer_norm.default, jvp=_jvp, reverse=False))
register(Derivative(aten.native_layer_norm_backward.default, _backward, later=True))
