"""The backward of a native dropout in forward mode: it is linear in what arrives."""

from __future__ import annotations

import torch
from torch import Tensor

from funcaot.derivatives.table import Derivative, register


def _jvp(
    tangents: tuple[Tensor | None, ...], arriving: Tensor, mask: Tensor, scale: float
) -> Tensor:
    moved = tangents[0]
    return torch.zeros_like(arriving) if moved is None else moved * mask * scale


register(Derivative(torch.ops.aten.native_dropout_backward.default, jvp=_jvp, reverse=False))
