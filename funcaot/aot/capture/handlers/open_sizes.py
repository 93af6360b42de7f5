"""Functions that torch computes by numbers, so that a trace would assume the sizes of its call.

Where sizes are open, they are computed by the sizes as they are here.
"""

from __future__ import annotations

from typing import Any

import torch

from funcaot._torch.levels.functorch import interpreter_stack
from funcaot._torch.tensors.ops import formula_of
from funcaot.aot.capture.handlers import writing
from funcaot.aot.capture.handlers.call import Call, InProgress

__all__ = ["MAKING", "by_formula", "fill_diagonal", "linear"]

# They make tensors of numbers that are given.
MAKING = (torch.linspace, torch.logspace, torch.tril_indices, torch.triu_indices)


def linear(call: Call, capture: InProgress) -> Any:
    """``torch.nn.functional.linear`` of a contiguous batch of three dimensions, under a transform.

    Torch flattens the batch there; the ops are the same.
    """
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


def by_formula(call: Call, capture: InProgress) -> Any:
    """What makes a tensor of a size that is open, by the formula of torch for its compilers."""
    if not any(isinstance(given, torch.SymInt) for given in (*call.args, *call.kwargs.values())):
        return NotImplemented
    return formula_of(call.name)(*call.args, **call.kwargs)


def fill_diagonal(call: Call, capture: InProgress) -> Any:
    """``fill_diagonal_`` of a matrix: a write to a view."""
    given: dict[str, Any] = dict(zip(("self", "fill_value", "wrap"), call.args, strict=False))
    given |= call.kwargs
    matrix = given["self"]
    if matrix.dim() != 2 or given.get("wrap") or all(type(size) is int for size in matrix.shape):
        return NotImplemented
    fill = Call(torch.Tensor.fill_, (matrix.diagonal(), given["fill_value"]), {})
    if writing.write(fill, capture) is NotImplemented:
        fill.run()
    return matrix
