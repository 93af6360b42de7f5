"""``special.zeta`` by its first argument: the series of Euler and Maclaurin, term by term."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from funcaot.derivatives.table import Derivative, register
from funcaot.derivatives.ways import transposed

# Summed as they are, before the rest is an integral with corrections.
_TERMS = 10
# Bernoulli's numbers of even index.
_BERNOULLI = (
    1 / 6, -1 / 30, 1 / 42, -1 / 30, 5 / 66, -691 / 2730, 7 / 6, -3617 / 510,
    43867 / 798, -174611 / 330, 854513 / 138, -236364091 / 2730,
)  # fmt: skip


def _zeta(s: Tensor, q: Tensor) -> Tensor:
    dtype = torch.promote_types(s.dtype, q.dtype)
    s, q = s.double(), q.double()
    found = sum((q + k) ** -s for k in range(_TERMS))
    last = q + _TERMS
    power = last**-s
    found = found + power * last / (s - 1) + power / 2
    rising, power = s, power / last
    for index, number in enumerate(_BERNOULLI):
        found = found + number / math.factorial(2 * index + 2) * rising * power
        rising = rising * (s + (2 * index + 1)) * (s + (2 * index + 2))
        power = power / last**2
    # The function has values there, and torch says NaN where it has none.
    return torch.where((s > 1) & (q > 0), found, math.nan).to(dtype)


def _zeta_of_number(s: Tensor, q: float) -> Tensor:
    return _zeta(s, torch.tensor(q, dtype=s.dtype, device=s.device))


for _op, _formula in (
    (torch.ops.aten.special_zeta.default, _zeta),
    (torch.ops.aten.special_zeta.other_scalar, _zeta_of_number),
):
    register(
        Derivative(
            _op,
            _formula,
            jvp=transposed(_formula),
            reverse=False,
            lacking=frozenset({"self"}),
        )
    )


def _pushed(tangents: Sequence[Any], s: float, q: Tensor) -> Tensor:
    return -s * torch.special.zeta(s + 1, q) * tangents[1]


register(Derivative(torch.ops.aten.special_zeta.self_scalar, jvp=_pushed, reverse=False))
