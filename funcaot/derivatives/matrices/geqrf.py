"""``geqrf``: its reflectors, one column after another, as LAPACK makes them.

They are smooth where no column is a combination of those before it.
"""

from __future__ import annotations

import torch
from torch import Tensor

from funcaot.derivatives.table import Derivative, register
from funcaot.derivatives.ways import transposed


def _reflectors(matrix: Tensor) -> tuple[Tensor, Tensor]:
    rest, corners, rows, columns, scales = matrix, [], [], [], []
    for _ in range(min(matrix.shape[-2:])):
        first, tail = rest[..., :1, :1], rest[..., 1:, :1]
        lower = (tail * tail.conj()).real.sum(-2, keepdim=True)
        # LAPACK leaves a column alone that is real and has nothing to be mirrored.
        alone = lower == 0
        if matrix.is_complex():
            alone = alone & (first.imag == 0)
        kept = torch.where(alone, torch.ones_like(first), first)
        length = ((kept * kept.conj()).real + lower).sqrt()
        corner = torch.where(kept.real < 0, length, -length)
        scale = torch.where(alone, torch.zeros_like(first), (corner - kept) / corner)
        reflector = tail / (kept - corner)
        row = rest[..., :1, 1:] + reflector.mH @ rest[..., 1:, 1:]
        turned = scale.conj() * row
        corners.append(torch.where(alone, first, corner.to(first.dtype)))
        rows.append(rest[..., :1, 1:] - turned)
        columns.append(reflector)
        scales.append(scale[..., 0])
        rest = rest[..., 1:, 1:] - reflector @ turned
    for corner, row, column in zip(corners[::-1], rows[::-1], columns[::-1], strict=True):
        upper, lower = torch.cat([corner, row], -1), torch.cat([column, rest], -1)
        rest = torch.cat([upper, lower], -2)
    if not scales:
        return matrix, matrix.new_zeros((*matrix.shape[:-2], 0))
    return rest, torch.cat(scales, -1)


register(Derivative(torch.ops.aten.geqrf.default, _reflectors, jvp=transposed(_reflectors)))
