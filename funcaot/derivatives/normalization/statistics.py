"""Normalization in ops that have derivatives; the rules beside it call this."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeAlias

import torch
from torch import Tensor

Maybe: TypeAlias = Tensor | None
ScaleOf: TypeAlias = Callable[[Tensor], Tensor]
_LOW_PRECISION = (torch.float16, torch.bfloat16)


def precise(tensor: Tensor) -> Tensor:
    """A tensor in the precision of torch's kernels, which compute halves in single precision."""
    return tensor.float() if tensor.dtype in _LOW_PRECISION else tensor


def gradients(
    arriving: Tensor, value: Tensor, weight: Maybe, dims: tuple[int, ...], scale_of: ScaleOf
) -> tuple[Tensor, Tensor]:
    """The gradient of the input, and what arrives times what is normalized.

    Args:
        arriving: At the output.
        value: The input.
        weight: Of the shape to multiply with.
        dims: What means and variances are taken over.
        scale_of: The reciprocal deviations for the variances.
    """
    variance, mean = torch.var_mean(value, dims, correction=0, keepdim=True)
    scale = scale_of(variance)
    normal = (value - mean) * scale
    sent = arriving if weight is None else arriving * weight
    along = (normal * sent).mean(dims, keepdim=True)
    centered = sent - sent.mean(dims, keepdim=True)
    return (centered - normal * along) * scale, arriving * normal


def pushed(value: Tensor, moved: Maybe, dims: tuple[int, ...], eps: float) -> tuple[Tensor, Maybe]:
    """What is normalized to zero mean and unit variance, and its tangent."""
    variance, mean = torch.var_mean(value, dims, correction=0, keepdim=True)
    scale = torch.rsqrt(variance + eps)
    normal = (value - mean) * scale
    if moved is None:
        return normal, None
    along = (normal * moved).mean(dims, keepdim=True)
    return normal, (moved - moved.mean(dims, keepdim=True) - normal * along) * scale


def affine(normal: Tensor, moved: Maybe, weight: Maybe, by_weight: Maybe, by_bias: Maybe) -> Maybe:
    """The tangent of a normal times a weight plus a bias."""
    total = moved if moved is None or weight is None else moved * weight
    if by_weight is not None:
        total = normal * by_weight if total is None else total + normal * by_weight
    if by_bias is not None:
        spread = by_bias.expand_as(normal)
        total = spread if total is None else total + spread
    return total
