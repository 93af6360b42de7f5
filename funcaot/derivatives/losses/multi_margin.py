"""``multi_margin_loss``: the gradient of its formula, and forward mode."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from funcaot.derivatives.losses.reductions import reduced
from funcaot.derivatives.table import Derivative, register
from funcaot.derivatives.ways import gradient_of, transposed

aten = torch.ops.aten


def _backward(
    arriving: Tensor,
    scores: Tensor,
    target: Tensor,
    *options: Any,
) -> Tensor:
    given: tuple[Any, ...] = (*options, *(1, 1, None, 1)[len(options) :])
    p, margin, weight, reduction = given
    wanted = target.reshape(-1, 1)

    def loss(scores: Tensor) -> Tensor:
        rows = scores.reshape(wanted.shape[0], -1)
        short = margin - rows.gather(1, wanted) + rows
        other = torch.ones_like(rows, dtype=torch.bool).scatter(1, wanted, False)
        counted = torch.where(other & (short > 0), short, torch.zeros_like(short)) ** p
        if weight is not None:
            counted = counted * weight[wanted]
        return reduced(counted.sum(1) / rows.shape[1], reduction, arriving)

    return gradient_of(loss, scores, arriving)


register(
    Derivative(
        aten.multi_margin_loss.default,
        jvp=transposed(aten.multi_margin_loss.default),
        reverse=False,
    )
)
register(Derivative(aten.multi_margin_loss_backward.default, _backward))
