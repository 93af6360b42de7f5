"""The gradient of ``prod``, as eager computes it where no element is zero: by dividing.

Torch has two formulas, and eager looks at values to choose. The one for tensors that are recorded
multiplies the other elements, which has strides of its own, and a number where eager has NaN, by
an infinite element.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from funcaot._torch.levels.functorch import is_functorch_wrapped_tensor
from funcaot.derivatives.table import Derivative, register

aten = torch.ops.aten


def _of_others(x: Tensor, dim: int) -> Tensor:
    """For each element the product of those beside it along a dimension."""
    size = x.shape[dim]
    one = torch.ones_like(x.narrow(dim, 0, 1))
    before = torch.cat([one, x.narrow(dim, 0, size - 1)], dim).cumprod(dim)
    after = torch.cat([one, x.narrow(dim, 1, size - 1).flip(dim)], dim).cumprod(dim).flip(dim)
    return before * after


def _slopes(x: Tensor, result: Tensor, dim: int | None) -> Tensor:
    """The derivative of each product by each of its elements."""
    whole = x.contiguous().view(-1) if dim is None else x
    along = 0 if dim is None else dim
    if whole.shape[along] == 0:
        return result / x
    if is_functorch_wrapped_tensor(x):  # as in eager
        return _of_others(whole, along).view(x.shape)
    none = (x.detach() != 0).all()
    others = torch.where(none, torch.ones_like(whole), whole)
    divided = torch.where(none, result, torch.ones_like(result)) / torch.where(
        none, x, torch.ones_like(x)
    )
    return torch.where(none, divided, _of_others(others, along).view(x.shape))


def _pulled(arriving: Tensor, x: Tensor, result: Tensor, dim: int | None, keepdim: bool) -> Tensor:
    if x.dim() == 0:
        return arriving.clone().to(x.dtype)
    if dim is not None and not keepdim:
        arriving, result = arriving.unsqueeze(dim), result.unsqueeze(dim)
    gradient = arriving * _slopes(x.to(result.dtype), result, dim).conj()
    if gradient.is_complex() and not x.is_complex():
        gradient = gradient.real
    return gradient.to(x.dtype)


def _pushed(tangent: Tensor, x: Tensor, result: Tensor, dim: int | None, keepdim: bool) -> Tensor:
    if x.dim() == 0:
        return tangent.to(result.dtype)
    whole = result if dim is None or keepdim else result.unsqueeze(dim)
    moved = _slopes(x.to(result.dtype), whole, dim) * tangent
    return moved.sum() if dim is None else moved.sum(dim, keepdim)


def _vjp(
    cotangents: Sequence[Tensor | None],
    x: Tensor,
    dim: int | None = None,
    keepdim: bool = False,
    *,
    results: tuple[Tensor],
    **_: Any,
) -> Tensor | None:
    (arriving,) = cotangents
    return None if arriving is None else _pulled(arriving, x, results[0], dim, keepdim)


def _jvp_of(op: Any) -> Any:
    def jvp(
        tangents: Sequence[Any],
        x: Tensor,
        dim: int | None = None,
        keepdim: bool = False,
        **given: Any,
    ) -> Tensor:
        where = () if dim is None else (dim, keepdim)
        return _pushed(tangents[0], x, op(x, *where, **given), dim, keepdim)

    return jvp


for _op in (aten.prod.default, aten.prod.dim_int):
    register(Derivative(_op, vjp=_vjp, jvp=_jvp_of(_op), reads_results=True))
