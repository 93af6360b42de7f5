"""Normalization in ops that have derivatives; the rules beside it call this."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TypeAlias

import torch
from torch import Tensor

from funcaot._torch.autograd.autograd import in_dual_level
from funcaot._torch.levels.functorch import differentiating_levels

Maybe: TypeAlias = Tensor | None
ScaleOf: TypeAlias = Callable[[Tensor], Tensor]
_LOW_PRECISION = (torch.float16, torch.bfloat16)


def precise(tensor: Tensor) -> Tensor:
    """A tensor in the precision of torch's kernels, which compute halves in single precision."""
    return tensor.float() if tensor.dtype in _LOW_PRECISION else tensor


def differentiated_below(tensors: Sequence[Maybe]) -> bool:
    """Whether what a level of ``vmap`` gives of these may be differentiated below it.

    Torch's rules for a batch are right where it isn't: they multiply with the statistics of the
    forward, which are constants for whoever differentiates.
    """
    given = [tensor for tensor in tensors if tensor is not None]
    return differentiating_levels(given) > 0 or in_dual_level()


def in_front(tensor: Maybe, dim: int | None) -> Maybe:
    """A tensor with its batch in front, of one if it is the same for all."""
    if tensor is None:
        return None
    return tensor.unsqueeze(0) if dim is None else tensor.movedim(dim, 0)


def of_batch(found: Sequence[Maybe], size: int) -> tuple[tuple[Maybe, ...], tuple[int | None, ...]]:
    """Results that have their batch in front, as a rule of ``vmap`` returns them."""
    spread = [
        None if tensor is None else tensor.expand(size, *tensor.shape[1:]) for tensor in found
    ]
    return tuple(spread), tuple(None if tensor is None else 0 for tensor in spread)


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
