"""Eigenvectors in forward mode, where the tangent is to be differentiated.

Torch's formula divides by the differences of all eigenvalues and puts zeros where one was taken
from itself: the gradient of that is NaN.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from funcaot.derivatives.table import Derivative, register

aten = torch.ops.aten


def _turned(along: Tensor, values: Tensor) -> Tensor:
    """What moves eigenvectors towards each other, for the tangent in their basis."""
    itself = torch.eye(values.shape[-1], dtype=torch.bool, device=values.device)
    apart = values.unsqueeze(-2) - values.unsqueeze(-1)
    return torch.where(itself, 0, along / torch.where(itself, 1, apart))


def _hermitian(
    tangents: Sequence[Any], matrix: Tensor, *options: Any, **keywords: Any
) -> tuple[Tensor | None, Tensor | None]:
    moved = tangents[0]
    if moved is None:
        return None, None
    values, vectors = aten._linalg_eigh.default(matrix, *options, **keywords)
    if vectors.numel() == 0:  # Nobody asked for them, which torch does for any tangent.
        return torch.zeros_like(values), None
    along = vectors.mH @ moved @ vectors
    diagonal = along.diagonal(0, -2, -1)
    by_values = diagonal.real if diagonal.is_complex() else diagonal
    return by_values, vectors @ _turned(along, values)


def _general(tangents: Sequence[Any], matrix: Tensor) -> tuple[Tensor | None, Tensor | None]:
    moved = tangents[0]
    if moved is None:
        return None, None
    values, vectors = aten.linalg_eig.default(matrix)
    along = torch.linalg.solve(vectors, moved.to(vectors.dtype) @ vectors)
    pushed = vectors @ _turned(along, values)
    # They keep their length, and their phase as torch's tangent has it.
    longer = (vectors.conj() * pushed).sum(-2, keepdim=True).real
    return along.diagonal(0, -2, -1), pushed - vectors * longer


register(Derivative(aten._linalg_eigh.default, jvp=_hermitian, reverse=False))
register(Derivative(aten.linalg_eig.default, jvp=_general, reverse=False))
