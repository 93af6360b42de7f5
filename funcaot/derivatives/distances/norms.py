"""The derivative of a norm of order ``p`` as torch's kernels of distances have it."""

from __future__ import annotations

import math

import torch
from torch import Tensor

__all__ = ["scaled_differences"]


def scaled_differences(arriving: Tensor, difference: Tensor, distance: Tensor, p: float) -> Tensor:
    """``arriving`` times the gradient of each distance by its difference; zero where that is zero.

    Args:
        arriving: One per distance.
        difference: With one dimension more, the features.
        distance: The norms, of order ``p``.
        p: At least zero.
    """
    if p == 0:
        return torch.zeros_like(difference)
    arriving, distance = arriving.unsqueeze(-1), distance.unsqueeze(-1)
    if p == 1:
        return arriving * difference.sign()
    if math.isinf(p):
        return arriving * difference.sign() * (difference.abs() == distance)
    apart = (distance != 0) & ((difference != 0) | (p == 2))
    whole = torch.where(apart, distance, torch.ones_like(distance))
    if p == 2:
        return torch.where(apart, arriving * difference / whole, torch.zeros_like(difference))
    size = torch.where(apart, difference.abs(), torch.ones_like(difference))
    slope = difference.sign() * (size / whole) ** (p - 1)
    return torch.where(apart, arriving * slope, torch.zeros_like(slope))
