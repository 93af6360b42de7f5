"""Determinants: derivatives from the second on, and tangents that can be pushed forward again.

Torch's gradient looks at values: it takes an SVD for singular matrices and solves for the others.
Where values aren't known it takes the SVD for all. That has no derivative where singular values
are equal, as those of a rotation are.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from funcaot._torch.levels.functorch import has_tangent
from funcaot.derivatives.table import Derivative, register
from funcaot.derivatives.ways import transposed

aten = torch.ops.aten


def _vjp(
    cotangents: Sequence[Tensor | None], matrix: Tensor, *, results: tuple[Tensor, ...]
) -> Tensor | None:
    arriving = cotangents[0]
    if arriving is None:
        return None
    if matrix.numel() == 0:
        return torch.zeros_like(matrix)
    if not (torch.is_grad_enabled() or has_tangent(matrix) or has_tangent(arriving)):
        return _from_factors(arriving, matrix, *results)
    det = torch.linalg.det(matrix)
    epsilon = torch.finfo(matrix.dtype).eps
    singular = (det.detach().abs() < 100 * epsilon)[..., None, None]
    # Each formula is given matrices that it has a derivative for, as NaN would go through `where`.
    places = torch.arange(1, 1 + matrix.shape[-1], device=matrix.device).to(matrix.dtype)
    regular = matrix.where(~singular, torch.diag(torch.ones_like(places)))
    degenerate = matrix.where(singular, torch.diag(places))
    by_svd = _from_singular_values(arriving, degenerate)
    return by_svd.where(singular, _solved(arriving, det, regular))


def _from_factors(
    arriving: Tensor, matrix: Tensor, det: Tensor, factors: Tensor, pivots: Tensor
) -> Tensor:
    """The gradient by the factors that the op has found."""
    zero = factors.diagonal(0, -2, -1) == 0
    nearly = torch.where(zero, torch.finfo(matrix.dtype).eps, 0.0)
    factors = factors + torch.diag_embed(nearly)
    transposed_already = matrix.is_contiguous() and not matrix.is_complex()
    right = _on_diagonal(arriving * det.conj(), matrix)
    return torch.linalg.lu_solve(factors, pivots, right, adjoint=not transposed_already)


def _on_diagonal(values: Tensor, matrix: Tensor) -> Tensor:
    return torch.diag_embed(values[..., None].expand(matrix.shape[:-1]))


def _solved(arriving: Tensor, det: Tensor, matrix: Tensor) -> Tensor:
    return torch.linalg.solve(matrix.mH, _on_diagonal(arriving * det.conj(), matrix))


def _from_singular_values(arriving: Tensor, matrix: Tensor) -> Tensor:
    left, values, right = torch.linalg.svd(matrix)
    one = torch.ones_like(values[..., :1])
    before = torch.cat([one, values[..., :-1]], -1).cumprod(-1)
    after = torch.cat([one, values[..., 1:].flip(-1)], -1).cumprod(-1).flip(-1)
    sign = (torch.linalg.det(left) * torch.linalg.det(right)).conj() * arriving
    return (left * (sign[..., None] * before * after)[..., None, :]) @ right


_op = aten._linalg_det.default
register(Derivative(_op, vjp=_vjp, jvp=transposed(_op), reads_results=True))
