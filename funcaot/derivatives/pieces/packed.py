"""Packed sequences in forward mode: what is packed and unpacked moves as it lies."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from funcaot.derivatives.table import Derivative, register

aten = torch.ops.aten


def _packed(tangents: Sequence[Any], _: Tensor, *rest: Any) -> tuple[Tensor, None]:
    return aten._pack_padded_sequence.default(tangents[0], *rest)[0], None


def _packed_back(tangents: Sequence[Any], _: Tensor, *rest: Any) -> Tensor:
    return aten._pack_padded_sequence_backward.default(tangents[0], *rest)


register(Derivative(aten._pack_padded_sequence.default, jvp=_packed, reverse=False))
register(Derivative(aten._pack_padded_sequence_backward.default, jvp=_packed_back, reverse=False))
