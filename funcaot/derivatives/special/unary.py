"""How a special function of one number gets the derivative that its own file states."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
from torch import Tensor

from funcaot._torch.autograd.op_kernels import OpOverload
from funcaot.derivatives.table import Derivative, register

__all__ = ["register_unary"]


def register_unary(op: OpOverload, slope: Callable[[Tensor], Tensor]) -> None:
    """Register an op by its derivative, which is written in ops of the table."""

    def vjp(cotangents: Sequence[Tensor], x: Tensor) -> Tensor:
        return cotangents[0] * slope(x)

    def jvp(tangents: Sequence[Tensor], x: Tensor) -> Tensor:
        return tangents[0] * slope(x)

    register(Derivative(op, vjp=vjp, jvp=jvp))


def over(numerator: Tensor, x: Tensor, at_zero: float) -> Tensor:
    """``numerator / x`` with its limit where ``x`` is zero, without NaN in derivatives."""
    zero = x == 0
    quotient = numerator / torch.where(zero, torch.ones_like(x), x)
    return torch.where(zero, torch.full_like(x, at_zero), quotient)
