"""Masks become indices where a capture is given the results whose size values decide.

What is one at an index is compared with the number of indices, as in eager.
"""

from __future__ import annotations

from typing import Any

import torch

from funcaot._torch.levels import functorch
from funcaot._torch.tracing.eager_rules.checked_values import check_classes
from funcaot._torch.tracing.eager_rules.eager_shapes import MASKS, refuse_masks
from funcaot._torch.tracing.eager_rules.eager_strides import dims_of_like
from funcaot.aot.capture.handlers.call import Call, InProgress
from funcaot.aot.tape.known import sizes_of_values

__all__ = ["one_hot", "select_by_indices", "with_indices"]


def select_by_indices(call: Call, capture: InProgress) -> Any:
    """``masked_select``, by the indices of what it selects.

    These have no derivative, and what is selected by them has one that knows its size.
    """
    if sizes_of_values.current() is None or len(call.args) != 2 or call.kwargs:
        return NotImplemented
    if call.args[1].dtype is not torch.bool:
        return NotImplemented  # eager raises
    source, mask = torch.broadcast_tensors(*map(torch.atleast_1d, call.args))
    # Dimensions in the order in which those of eager's gradient lie in memory.
    order = dims_of_like(source)
    indices = mask.nonzero(as_tuple=True)
    return source.permute(order)[tuple(indices[dim] for dim in order)]


def with_indices(call: Call, capture: InProgress) -> Any:
    """A read or write by index, with indices in place of masks."""
    if sizes_of_values.current() is None:
        return NotImplemented
    source, index, *value = call.args
    key = index if type(index) is tuple else (index,)
    if not any(map(_is_mask, key)):
        return NotImplemented
    if value and not (isinstance(value[0], torch.Tensor) and value[0].numel() != 1):
        return NotImplemented
    refuse_masks(source, key)
    parts: list[Any] = []
    for part in key:
        parts += part.nonzero(as_tuple=True) if _is_mask(part) else [part]
    return call.given((source, tuple(parts), *value))


def one_hot(tensor: torch.Tensor, num_classes: Any = -1) -> Any:
    """``one_hot`` of a known number of classes, which eager compares with each one."""
    known = tensor.numel() > 0 and isinstance(num_classes, int) and num_classes > 0
    if known and not functorch.is_functorch_wrapped_tensor(tensor):
        check_classes(tensor, num_classes)
    return NotImplemented


def _is_mask(part: Any) -> bool:
    return isinstance(part, torch.Tensor) and part.dtype in MASKS and part.dim() > 0
