"""The backward of ``hardsigmoid``: a sixth of what arrives, between minus three and three."""

from __future__ import annotations

import torch
from torch import Tensor

from funcaot.derivatives.table import Derivative, register


def _backward(arriving: Tensor, x: Tensor) -> Tensor:
    inside = (x > -3) & (x < 3)
    return torch.where(inside, arriving / 6, torch.zeros_like(arriving))


register(Derivative(torch.ops.aten.hardsigmoid_backward.default, _backward))
