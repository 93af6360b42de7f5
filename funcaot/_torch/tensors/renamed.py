"""Ops whose overload has a name that Python keeps for itself: graphs call them by another.

A graph's code is Python, and compilers write some of their own: ``torch.ops.aten.random.from`` is
no expression. Autograd sees the op that the other one stands for.
"""

from __future__ import annotations

from typing import Any

import torch
from torch.library import Library, register_fake

from funcaot._torch.tensors.ops import OpOverload

__all__ = ["ORIGINALS", "RENAMED"]

_FROM: OpOverload = getattr(torch.ops.aten.random, "from")

_library = Library("funcaot", "FRAGMENT")
_library.define(
    "random_from(Tensor self, int from, int? to, *, Generator? generator=None) -> Tensor",
    tags=(torch.Tag.nondeterministic_seeded,),
)


def _random_from(tensor: torch.Tensor, *bounds: Any, generator: Any = None) -> torch.Tensor:
    return _FROM(tensor, *bounds, generator=generator)


for _key in ("CompositeExplicitAutograd", "Autograd"):
    _library.impl("random_from", _random_from, _key)
register_fake("funcaot::random_from", lambda tensor, *_, generator=None: torch.empty_like(tensor))

RENAMED: dict[Any, OpOverload] = {_FROM: torch.ops.funcaot.random_from.default}
ORIGINALS: dict[Any, OpOverload] = {new: old for old, new in RENAMED.items()}
