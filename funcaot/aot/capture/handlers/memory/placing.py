"""A place in memory is named: where it may be outside of the tensor, the whole storage matters."""

from __future__ import annotations

from typing import Any

import torch

from funcaot._torch.levels import functorch
from funcaot.aot.capture.handlers.call import Call, InProgress
from funcaot.aot.graph.tensor_spec import is_dense
from funcaot.aot.tape.memory.bounds import check_bounds
from funcaot.aot.tape.memory.strided_views import extent

__all__ = ["leaves_its_place", "name_a_place"]


def name_a_place(call: Call, capture: InProgress) -> Any:
    """``storage_offset``, and ``as_strided`` that may reach beyond the tensor."""
    is_view = call.name == "as_strided"
    if is_view and not leaves_its_place(*call.args, **call.kwargs):
        return NotImplemented
    inner = functorch.fully_unwrapped(call.args[0])  # A level's wrapper has no storage.
    capture.events.placed.append(inner)
    if is_view and inner is call.args[0] and not capture.is_in_an_input(inner):
        check_bounds(capture.tape, *call.args, **call.kwargs)
    return NotImplemented


def leaves_its_place(
    tensor: torch.Tensor, size: Any, stride: Any, storage_offset: Any = None, **_: Any
) -> bool:
    """Whether ``as_strided`` may show memory that the tensor itself doesn't."""
    if storage_offset is not None:
        return True
    numbers = (*size, *stride, *tensor.shape, *tensor.stride())
    if not all(isinstance(number, int) for number in numbers):
        return True
    shape, steps = tuple(tensor.shape), tuple(tensor.stride())
    return not is_dense(shape, steps) or extent(tuple(size), tuple(stride)) > extent(shape, steps)
