"""A linear layer with a bias under a transform, where sizes are open.

Inside of a transform torch flattens its batch by numbers, so that a trace would assume the sizes of
its call. Here it is flattened by the sizes as they are; the ops are the same.
"""

from __future__ import annotations

from typing import Any

import torch

from funcaot._torch.levels.functorch import interpreter_stack
from funcaot.aot.capture.handlers.call import Call, InProgress

__all__ = ["keep_open"]


def keep_open(call: Call, capture: InProgress) -> Any:
    """``torch.nn.functional.linear`` of a contiguous batch of three dimensions."""
    given: dict[str, Any] = dict(zip(("input", "weight", "bias"), call.args, strict=False))
    given |= call.kwargs
    operands: list[Any] = [given.get(name) for name in ("input", "weight", "bias")]
    if not all(isinstance(each, torch.Tensor) for each in operands) or not interpreter_stack():
        return NotImplemented
    tensor, weight, bias = operands
    open_sizes = sum(type(size) is not int for size in tensor.shape[:-1])
    if tensor.dim() != 3 or weight.dim() != 2 or open_sizes < 2 or not tensor.is_contiguous():
        return NotImplemented
    rows, columns, width = tensor.shape
    product = torch.addmm(bias, tensor.view(rows * columns, width), weight.t())
    return product.view(rows, columns, weight.shape[0])
