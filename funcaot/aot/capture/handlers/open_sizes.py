"""Functions that torch computes by numbers, so that a trace would assume the sizes of its call.

Where sizes are open, they are computed by the sizes as they are here.
"""

from __future__ import annotations

import math
from typing import Any

import torch

from funcaot._torch.calls.einsum_order import in_order, is_ordered
from funcaot._torch.levels.functorch import interpreter_stack
from funcaot._torch.tensors.ops import formula_of
from funcaot.aot.capture.handlers import writing
from funcaot.aot.capture.handlers.call import Call, InProgress

__all__ = [
    "FREQUENCIES",
    "MAKING",
    "by_formula",
    "einsum",
    "fill_diagonal",
    "frequencies",
    "linear",
]

# They make tensors of numbers that are given.
MAKING = (torch.linspace, torch.logspace, torch.tril_indices, torch.triu_indices)
FREQUENCIES = (torch.fft.fftfreq, torch.fft.rfftfreq)


def linear(call: Call, capture: InProgress) -> Any:
    """``torch.nn.functional.linear`` of a batch of three dimensions or more, under a transform.

    Torch flattens the batch there; the ops are the same.
    """
    given: dict[str, Any] = dict(zip(("input", "weight", "bias"), call.args, strict=False))
    given |= call.kwargs
    operands: list[Any] = [given.get(name) for name in ("input", "weight", "bias")]
    if not all(isinstance(each, torch.Tensor) for each in operands) or not interpreter_stack():
        return NotImplemented
    tensor, weight, bias = operands
    batch = tensor.shape[:-1]
    if tensor.dim() < 3 or weight.dim() != 2 or all(type(size) is int for size in batch):
        return NotImplemented
    if not tensor.is_contiguous():
        return torch.matmul(tensor, weight.t()) + bias
    product = torch.addmm(bias, tensor.view(math.prod(batch), tensor.shape[-1]), weight.t())
    return product.view(*batch, weight.shape[0])


def by_formula(call: Call, capture: InProgress) -> Any:
    """What makes a tensor of a size that is open, by the formula of torch for its compilers."""
    if not any(isinstance(given, torch.SymInt) for given in (*call.args, *call.kwargs.values())):
        return NotImplemented
    return formula_of(call.name)(*call.args, **call.kwargs)


def einsum(call: Call, capture: InProgress) -> Any:
    """``torch.einsum`` of more than two operands, in an order for the sizes at present."""
    equation, *operands = call.args
    if len(operands) == 1 and isinstance(operands[0], (list, tuple)):
        operands = [*operands[0]]
    return in_order(equation, operands) if is_ordered(operands) else NotImplemented


def frequencies(call: Call, capture: InProgress) -> Any:
    """``fftfreq`` and ``rfftfreq`` of a size that is open, rounded as torch's are."""
    given: dict[str, Any] = dict(zip(("n", "d"), call.args, strict=False)) | call.kwargs
    n: Any = given.pop("n")
    d = given.pop("d", 1.0)
    if not isinstance(n, torch.SymInt) or given.get("out") is not None:
        return NotImplemented
    given = {"dtype": torch.get_default_dtype(), **given}
    needs_grad = given.pop("requires_grad", False)
    size: Any = n
    if call.func is torch.fft.rfftfreq:
        waves = torch.arange(size // 2 + 1, **given)
    else:
        waves = torch.arange(size, **given)
        waves = torch.where(waves < (size + 1) // 2, waves, waves - size)
    found = waves * (1.0 / (n * d))
    return found.requires_grad_() if needs_grad else found


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
