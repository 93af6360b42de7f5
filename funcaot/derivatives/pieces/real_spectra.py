"""The gradients of ``rfft`` and ``irfft``, which torch writes into a part of new memory.

That can't be differentiated in forward mode, or batched, where a size is open. What is computed is
the same.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from funcaot.derivatives.table import Derivative, register

aten = torch.ops.aten


def _from_spectrum(
    cotangents: Sequence[Tensor | None],
    x: Tensor,
    dim: Sequence[int],
    normalization: int,
    onesided: bool,
) -> Tensor | None:
    """The other half of the spectrum is zeros; the imaginary part of the signal is left out."""
    (arriving,) = cotangents
    if arriving is None:
        return None
    if onesided:
        last = dim[-1] % x.dim()
        missing = x.shape[last] - arriving.shape[last]
        behind = [0, 0] * (x.dim() - 1 - last)
        arriving = torch.constant_pad_nd(arriving, [*behind, 0, missing])
    return aten._fft_c2c(arriving, dim, normalization, False).real


def _to_spectrum(
    cotangents: Sequence[Tensor | None],
    x: Tensor,
    dim: Sequence[int],
    normalization: int,
    last_dim_size: int,
) -> Tensor | None:
    """What both halves of the spectrum make use of counts twice."""
    (arriving,) = cotangents
    if arriving is None:
        return None
    found = aten._fft_r2c(arriving, dim, normalization, True)
    last = dim[-1] % x.dim()
    place = torch.arange(found.shape[last], device=found.device)
    twice = (place > 0) & (place <= last_dim_size - found.shape[last])
    twice = twice.view([-1] + [1] * (x.dim() - 1 - last))
    return torch.where(twice, found * 2, found)


def _pushed(op: Any) -> Any:
    def jvp(tangents: Sequence[Any], x: Tensor, *rest: Any) -> Tensor:
        return op(tangents[0], *rest)

    return jvp


register(Derivative(aten._fft_r2c.default, vjp=_from_spectrum, jvp=_pushed(aten._fft_r2c.default)))
register(Derivative(aten._fft_c2r.default, vjp=_to_spectrum, jvp=_pushed(aten._fft_c2r.default)))
