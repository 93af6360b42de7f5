"""``ldl_factor`` and ``ldl_solve``: with the pivots that LAPACK chose, which are constant.

A step eliminates one column, or two whose corner is a block of two by two: pivots are negative
there. Before that it swaps the row and column of its last column with those that the pivot names.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor

from funcaot.derivatives.table import Derivative, register
from funcaot.derivatives.ways import transposed

aten = torch.ops.aten


def _turned(matrix: Tensor, hermitian: bool) -> Tensor:
    return matrix.mH if hermitian else matrix.mT


def _mirrored(lower: Tensor, hermitian: bool) -> Tensor:
    """The matrix whose lower triangle is given; LAPACK reads no more of it."""
    diagonal = torch.diag_embed(lower.diagonal(0, -2, -1))
    if hermitian and lower.is_complex():
        diagonal = diagonal.real.to(lower.dtype)
    strict = lower.tril(-1)
    return strict + _turned(strict, hermitian) + diagonal


def _steps(pivots: Tensor) -> Iterator[tuple[Tensor, Tensor, Tensor]]:
    """For each column: whether a step begins there, whether it takes two, the order of rows."""
    size = pivots.shape[-1]
    rows = torch.arange(size, device=pivots.device)
    begins = torch.ones_like(pivots.any(-1))  # of matrices that may be empty
    for column in range(size):
        pair = begins & (pivots[..., column] < 0)
        last = torch.where(pair, column + 1, column)[..., None]
        other = torch.where(begins, pivots[..., column].abs() - 1, last[..., 0])[..., None]
        order = torch.where(rows == last, other, torch.where(rows == other, last, rows))
        yield begins, pair, order.long()
        begins = ~pair


def _swapped(matrix: Tensor, order: Tensor, *, columns: bool = True) -> Tensor:
    found = matrix.gather(-2, order[..., :, None].expand(matrix.shape))
    return found.gather(-1, order[..., None, :].expand(found.shape)) if columns else found


def _masks(size: int, column: int, begins: Tensor, pair: Tensor) -> tuple[Tensor, Tensor]:
    """Where a step's multipliers stand in the factors, and where its corner does."""
    rows = torch.arange(size, device=begins.device)
    begins, pair = begins[..., None, None], pair[..., None, None]
    of_first = rows == column
    of_step = of_first | ((rows == column + 1) & pair)
    below = rows > torch.where(pair, column + 1, column)
    return begins & below[..., 0, :, None] & of_step[..., 0, None, :], begins & (
        of_step[..., 0, :, None] & of_step[..., 0, None, :]
    )


def _factors(
    matrix: Tensor, hermitian: bool = False, check_errors: bool = False
) -> tuple[Tensor, Tensor, Tensor]:
    _, pivots, info = aten.linalg_ldl_factor_ex.default(
        matrix.detach(), hermitian=hermitian, check_errors=check_errors
    )
    size = matrix.shape[-1]
    rest = _mirrored(matrix, hermitian)
    found = torch.zeros_like(matrix) if size else rest
    itself = torch.eye(size, dtype=matrix.dtype, device=matrix.device)
    for column, (begins, pair, order) in enumerate(_steps(pivots)):
        rest = _swapped(rest, order)
        multipliers, corner = _masks(size, column, begins, pair)
        block = torch.where(corner, rest, 0)
        # What isn't in the corner must not keep its inverse from being there.
        outside = itself * (~corner.diagonal(0, -2, -1))[..., None]
        left = torch.where(multipliers, rest, 0) @ torch.linalg.inv(block + outside)
        rest = rest - left @ block @ _turned(left, hermitian)
        found = found + left + block.tril()
    return found, pivots, info


def _product(factors: Tensor, pivots: Tensor, hermitian: bool) -> Tensor:
    """The matrix that was factored."""
    size = factors.shape[-1]
    steps = list(_steps(pivots))
    masks = [_masks(size, c, begins, pair) for c, (begins, pair, _) in enumerate(steps)]
    itself = torch.eye(size, dtype=factors.dtype, device=factors.device)
    corners = torch.zeros_like(factors)
    for _, corner in masks:
        corners = corners + torch.where(corner, factors, 0)
    found = _mirrored(corners, hermitian)
    for (multipliers, _), (_, _, order) in zip(masks[::-1], steps[::-1], strict=True):
        left = torch.where(multipliers, factors, 0) + itself
        found = _swapped(left @ found @ _turned(left, hermitian), order)
    return found


def _solution(factors: Tensor, pivots: Tensor, right: Tensor, hermitian: bool = False) -> Tensor:
    return torch.linalg.solve(_product(factors, pivots, hermitian), right)


def _rule(op: Any, formula: Any) -> None:
    register(Derivative(op, formula, jvp=transposed(formula)))


_rule(aten.linalg_ldl_factor_ex.default, _factors)
_rule(aten.linalg_ldl_solve.default, _solution)
