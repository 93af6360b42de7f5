"""Tangents of a gated linear unit and of its backward, which torch can't differentiate again."""

from __future__ import annotations

import torch
from torch import Tensor

from funcaot.derivatives.table import Derivative, register


def _tangent(unit: Tensor, value: Tensor, moved: Tensor, dim: int) -> Tensor:
    first, second = value.chunk(2, dim)
    of_first, of_second = moved.chunk(2, dim)
    gate = torch.sigmoid(second)
    return gate * (of_first + first * (1 - gate) * of_second)


register(Derivative(torch.ops.aten.glu_jvp.default, _tangent, constant=frozenset({"glu"})))


def _tangent_of_backward(
    _: Tensor, arriving: Tensor, value: Tensor, moved_arriving: Tensor, moved: Tensor, dim: int
) -> Tensor:
    first, second = value.chunk(2, dim)
    of_first, of_second = moved.chunk(2, dim)
    gate = torch.sigmoid(second)
    slope = gate * (1 - gate)
    by_first = moved_arriving * gate + arriving * slope * of_second
    curved = first * (1 - 2 * gate) * of_second
    by_second = slope * (moved_arriving * first + arriving * (of_first + curved))
    return torch.cat([by_first, by_second], dim)


register(
    Derivative(
        torch.ops.aten.glu_backward_jvp.default,
        _tangent_of_backward,
        constant=frozenset({"grad_x"}),
    )
)
