"""Dropout that drops nothing, or everything, as eager has it.

With open sizes torch takes it apart in another way: what drops nothing is a copy, where eager
returns the tensor itself, or draws for a jagged one; what drops everything draws random numbers,
where eager draws none.
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
    """What a dropout gives that isn't training, or whose probability is 0 or 1."""
    args, kwargs = call.args, call.kwargs
    name, default = TRAINING[call.func]
    training = args[2] if len(args) > 2 else kwargs.get(name, default)
    probability = args[1] if len(args) > 1 else kwargs.get("p", 0.5)
    tensor = args[0] if args else kwargs.get("input")
    plain = isinstance(probability, float | int) and 0 <= probability <= 1
    if not (plain and isinstance(tensor, torch.Tensor)):
        return NotImplemented
    in_place = call.func is torch.dropout_ or (args[3] if len(args) > 3 else kwargs.get("inplace"))
    if tensor.is_nested:
        return NotImplemented if in_place else _of_nested(tensor, probability, training)
    if training is False or probability == 0:
        return tensor
    if probability != 1 or training is not True or tensor.numel() == 0:
        return NotImplemented
    nothing = torch.zeros((), dtype=tensor.dtype, device=tensor.device)
    return tensor.mul_(nothing) if in_place else tensor.mul(nothing)


def _of_nested(tensor: torch.Tensor, probability: float, training: Any) -> Any:
    """Of a jagged tensor eager makes a copy, for which it draws where it is said to be training."""
    if training is False:
        return tensor.clone()
    if training is True and probability == 0:
        return torch.native_dropout(tensor, probability, True)[0]
    return NotImplemented
