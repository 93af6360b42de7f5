"""Draws whose parameters are tensors of numbers: eager's own kernels, given what is in them."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch.library import Library, register_fake

from funcaot._torch.tensors.ops import OpOverload

__all__ = ["DRAWN"]

_library = Library("funcaot", "FRAGMENT")
_library.define(
    "drawn(Tensor self, str method, Tensor[] numbers) -> Tensor",
    tags=(torch.Tag.nondeterministic_seeded,),
)


def _drawn(tensor: torch.Tensor, method: str, numbers: Sequence[torch.Tensor]) -> torch.Tensor:
    made = torch.empty_like(tensor)
    return getattr(made, method)(*(number.item() for number in numbers))


_library.impl("drawn", _drawn, "CompositeExplicitAutograd")
register_fake("funcaot::drawn", lambda tensor, *_: torch.empty_like(tensor))

DRAWN: OpOverload = torch.ops.funcaot.drawn.default
