"""``multilabel_margin_loss``: the gradient of its formula, and forward mode."""

from __future__ import annotations

import torch
from torch import Tensor

from funcaot.derivatives.losses.reductions import reduced
from funcaot.derivatives.table import Derivative, register
from funcaot.derivatives.ways import gradient_of, transposed

aten = torch.ops.aten


def _backward(
    arriving: Tensor, scores: Tensor, target: Tensor, reduction: int, is_target: Tensor
) -> Tensor:
    labels = target.reshape(-1, target.shape[-1] if target.dim() else 1)
    listed = (labels < 0).cumsum(1) == 0  # labels end before the first negative one
    outside = is_target.reshape(labels.shape) == 0

    def loss(scores: Tensor) -> Tensor:
        rows = scores.reshape(labels.shape)
        wanted = rows.gather(1, labels.clamp(min=0))
        short = 1 - wanted.unsqueeze(2) + rows.unsqueeze(1)
        counts = (short > 0) & listed.unsqueeze(2) & outside.unsqueeze(1)
        counted = torch.where(counts, short, torch.zeros_like(short))
        return reduced(counted.sum((1, 2)) / rows.shape[1], reduction, arriving)

    return gradient_of(loss, scores, arriving)


register(
    Derivative(
        aten.multilabel_margin_loss_forward.default,
        jvp=transposed(aten.multilabel_margin_loss_forward.default),
        reverse=False,
    )
)
register(Derivative(aten.multilabel_margin_loss_backward.default, _backward))
