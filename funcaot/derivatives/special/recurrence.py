"""How an orthogonal polynomial of a degree that is a number gets the derivatives of its recurrence.

A degree that is a tensor stays without: how far the recurrence goes would be one of its values.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeAlias

import torch
from torch import Tensor

from funcaot.derivatives.table import Derivative, register

__all__ = ["register_polynomial"]

First: TypeAlias = Callable[[Tensor], Tensor]
# The next value, from the degree of the last one, x, and the two last ones.
Step: TypeAlias = Callable[[int, Tensor, Tensor, Tensor], Tensor]


def register_polynomial(name: str, first: First, step: Step) -> None:
    """Register the overload of ``special_<name>`` whose degree is a number.

    Args:
        name: Of the op.
        first: The polynomial of degree one; that of degree zero is one.
        step: The recurrence.
    """

    def formula(x: Tensor, n: Any) -> Tensor:
        before, last = torch.ones_like(x), first(x)
        if n < 1:
            return before if n == 0 else torch.zeros_like(x)
        for degree in range(1, int(n)):
            before, last = last, step(degree, x, before, last)
        return last

    packet = getattr(torch.ops.aten, f"special_{name}")
    register(Derivative(packet.n_scalar, formula))
