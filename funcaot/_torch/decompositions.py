"""Decompositions in the place of Inductor's, where its own compute or allow something else."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import torch

__all__ = ["corrected"]

aten = torch.ops.aten

Table = Mapping[Any, Callable[..., Any]]

_NARROW = (torch.uint8, torch.int8, torch.int16)


def corrected(table: Table) -> dict[Any, Callable[..., Any]]:
    """A table of decompositions with those replaced that aren't what eager computes."""
    found = dict(table)
    found[aten.abs.default] = _abs
    if aten.celu.default in found:
        found[aten.celu.default] = _checked_celu(found[aten.celu.default])
    return found


def _abs(x: torch.Tensor) -> Any:
    """Narrow integers stay narrow: C++ takes ``abs`` of them as an int, and goes on with that."""
    if x.dtype not in _NARROW:
        return NotImplemented
    return x.clone() if x.dtype is torch.uint8 else torch.where(x < 0, -x, x)


def _checked_celu(decomposed: Callable[..., Any]) -> Callable[..., Any]:
    def celu(x: torch.Tensor, alpha: float = 1.0) -> Any:
        if alpha == 0:
            raise RuntimeError("ZeroDivisionError: alpha cannot be 0 for CELU")
        return decomposed(x, alpha)

    return celu
