"""Dropout that drops nothing gives back its input.

With open sizes torch takes it apart into a copy, where eager returns the tensor itself. Of a jagged
tensor eager makes a copy, too.
"""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as functional

from funcaot.aot.capture.handlers.call import Call, InProgress

__all__ = ["TRAINING", "give_back"]

# The name of the argument that says whether to drop anything, and whether it does by default.
TRAINING: dict[Any, tuple[str, bool | None]] = {
    functional.dropout: ("training", True),
    torch.dropout: ("train", None),
    torch.dropout_: ("train", None),
}


def give_back(call: Call, capture: InProgress) -> Any:
    """The input of a dropout that isn't training."""
    args, kwargs = call.args, call.kwargs
    name, default = TRAINING[call.func]
    training = args[2] if len(args) > 2 else kwargs.get(name, default)
    probability = args[1] if len(args) > 1 else kwargs.get("p", 0.5)
    tensor = args[0] if args else kwargs.get("input")
    idle = training is False or probability == 0
    plain = isinstance(probability, float | int) and 0 <= probability <= 1
    if not (idle and plain and isinstance(tensor, torch.Tensor)):
        return NotImplemented
    if not tensor.is_nested:
        return tensor
    # Where it is said to be training, random numbers are drawn.
    return (
        tensor.clone() if training is False and call.func is not torch.dropout_ else NotImplemented
    )
