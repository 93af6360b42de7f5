"""Functions that are constant between their jumps: ``heaviside``, and ``sgn`` of real numbers.

Torch has a derivative of ``sgn``, zeros that it makes by sizes as numbers.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from funcaot.derivatives.table import Derivative, register

aten = torch.ops.aten


def _heaviside(x: Tensor, values: Tensor) -> Tensor:
    return torch.where(x == 0, values, (x > 0).to(values.dtype))


register(Derivative(aten.heaviside.default, _heaviside))


def _of_sign(moved: Tensor | None, x: Tensor) -> Tensor | None:
    """What a cotangent is pulled back to, and a tangent pushed to: the map is symmetric."""
    if moved is None:
        return None
    if not x.is_complex():
        return torch.zeros_like(moved, memory_format=torch.contiguous_format)
    size, sign = x.abs(), x.sgn()
    along = (moved * sign.conj()).real
    found = (moved - along * sign) / size
    return found.masked_fill(size == 0, 0.0)


def _sign_vjp(cotangents: Sequence[Tensor | None], x: Tensor) -> Tensor | None:
    return _of_sign(cotangents[0], x)


def _sign_jvp(tangents: Sequence[Any], x: Tensor) -> Tensor | None:
    return _of_sign(tangents[0], x)


register(Derivative(aten.sgn.default, vjp=_sign_vjp, jvp=_sign_jvp))
