"""Masks become indices where a capture is given the results whose size values decide.

What is one at an index is compared with the number of indices, as in eager.
"""

from __future__ import annotations

import operator
from collections.abc import Iterator
from typing import Any

import torch

from funcaot._torch.levels import functorch
from funcaot._torch.tracing.eager_rules.checked_values import check_classes
from funcaot._torch.tracing.eager_rules.eager_shapes import mask_shape, refuse_masks
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
    """A read or write by index, with indices in place of masks.

    Those of a list of truth values are known.
    """
    source, index, *value = call.args
    if type(index) is list and not all(isinstance(item, int) for item in index):
        return NotImplemented  # what torch takes for a tuple, with a warning
    key = index if type(index) is tuple else (index,)
    fits = not value or (isinstance(value[0], torch.Tensor) and value[0].numel() != 1)
    tensors = sizes_of_values.current() is not None and fits
    parts: list[Any] = []
    for part in key:
        shape = mask_shape(part)
        if shape is None or (isinstance(part, torch.Tensor) and not tensors):
            parts.append(part)
        elif isinstance(part, torch.Tensor):
            parts += part.nonzero(as_tuple=True)
        else:
            places = list(_places(part))
            parts += ([place[dim] for place in places] for dim in range(len(shape)))
    if len(parts) == len(key) and all(map(operator.is_, parts, key)):
        return NotImplemented
    refuse_masks(source, key)
    return call.given((source, tuple(parts), *value))


def _places(part: Any, *before: int) -> Iterator[tuple[int, ...]]:
    """Where a list of truth values, or of such lists, is true."""
    if isinstance(part, bool):
        if part:
            yield before
        return
    for place, item in enumerate(part):
        yield from _places(item, *before, place)


def one_hot(tensor: torch.Tensor, num_classes: Any = -1) -> Any:
    """``one_hot`` of a known number of classes, which eager compares with each one."""
    known = tensor.numel() > 0 and isinstance(num_classes, int) and num_classes > 0
    if known and not functorch.is_functorch_wrapped_tensor(tensor):
        check_classes(tensor, num_classes)
    return NotImplemented
