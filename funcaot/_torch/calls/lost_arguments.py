"""Arguments that functions of torch don't hand on to a mode that asks what they are called with."""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Any

import torch

__all__ = ["LOST", "with_lost"]

# Each is written in Python and passes `handle_torch_function` all of its arguments but these.
LOST: dict[Callable[..., Any], tuple[str, ...]] = {
    torch.nn.functional.l1_loss: ("weight",),
    torch.Tensor.dim_order: ("ambiguity_check",),
    torch.chain_matmul: ("out",),
}


def with_lost(function: Callable[..., Any], keywords: dict[str, Any]) -> dict[str, Any]:
    """Keyword arguments that a mode got, and those that the function kept to itself.

    Args:
        function: A function of torch that is being called, further up.
        keywords: What the mode got.
    """
    lost = LOST.get(function)
    if lost is None:
        return keywords
    code = function.__code__  # type: ignore[attr-defined]
    frame = sys._getframe(1)
    while frame is not None:
        # A mode that got the call before has called it again, without them.
        if frame.f_code is code:
            found = {name: frame.f_locals[name] for name in lost}
            if not all(value is None or value is False for value in found.values()):
                return {**found, **keywords}
        frame = frame.f_back
    return keywords
