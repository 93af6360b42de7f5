"""The tangent of a gated linear unit, which torch can't differentiate again."""

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
