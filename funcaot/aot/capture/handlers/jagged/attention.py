"""Attention of jagged tensors as an op of funcaot's own; a row of ``table``.

Torch goes through strided nested tensors. These have the lengths of a batch as numbers, which a
graph doesn't have. The op computes the same, and reads the lengths when it runs.
"""

from __future__ import annotations

from typing import Any

import torch

from funcaot._torch.autograd.ragged_results import around
from funcaot._torch.tensors.classes.wrapping import flattened
from funcaot._torch.tensors.sizes import ragged_attention
from funcaot.aot.capture.handlers.call import Call, InProgress
from funcaot.derivatives.attention.packed import jagged_attention
from funcaot.errors import UnsupportedError

__all__ = ["ATTENTION", "run"]

ATTENTION = torch.nn.functional.scaled_dot_product_attention


def run(call: Call, capture: InProgress) -> Any:
    """Attention of jagged tensors by the MATH kernel; anything else is left to torch."""
    given = (*call.args, *call.kwargs.values())
    if not any(isinstance(each, torch.Tensor) and each.is_nested for each in given):
        return NotImplemented
    asked = ragged_attention.asked(call.args, call.kwargs)
    if asked is None:
        return NotImplemented
    if asked.dropout:
        raise UnsupportedError(
            f"{capture.name} drops weights at random in the attention of jagged tensors, by as "
            "many draws as the lengths make.",
            remedy="dropout_p=0.0 here, and dropout of the result; or compute it outside.",
        )
    query, key, value = asked.operands
    packed = [each.values().transpose(0, 1) for each in (query, key, value)]
    offsets = [each.offsets() for each in (query, key, value)]
    result = jagged_attention(*packed, *offsets, asked.scale)
    beside = {name: getattr(query, name) for name in flattened(query)[0][1:]}
    return around(result, beside).transpose(1, 2)
