"""Floats that a captured function reads off tensors (``loss.item()``): they stay in the graph.

The handler of ``item`` makes them. They are computed with in the graph, in double precision as
Python does; where one is returned or stored, each call gives its own number. What needs the number
itself (text, a key, ``round``) reads it then, which is a premise of the program (``premises``).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from funcaot._torch.tensors.sizes.number_tensors import marked, number_of, stepping
from funcaot._torch.tensors.sizes.open_floats import OpenFloat
from funcaot._torch.tensors.sizes.read_floats import current
from funcaot._torch.tensors.sizes.written_numbers import is_written
from funcaot._torch.tracing.tracing import without_torch_function
from funcaot.aot.tape.known.premises import number_in
from funcaot.errors import UnsupportedError

__all__ = ["number_off"]


def number_off(tensor: torch.Tensor) -> Any:
    """What stands for the float in a tensor of one; ``NotImplemented`` where it is to be read."""
    log = current()
    if log is None or stepping.steps or tensor.numel() != 1:
        return NotImplemented
    with torch.no_grad():
        number = number_of(tensor)
        if number is None:
            return NotImplemented
        return OpenFloat.of_tensor(log, marked(number.cpu(), float), _InGraph())


class _InGraph:
    """Computes with such numbers in the graph of the capture in progress."""

    def value(self, number: torch.Tensor) -> float:
        with without_torch_function():  # No op of the program is called.
            found = number_in(number)
        if found is NotImplemented:
            raise UnsupportedError(
                "The value of a number that is read off a tensor is asked for, where no values "
                "are known.",
                remedy="compute with the tensor (torch.where).",
            )
        return found

    def answer(self, ask: Callable[[], Any]) -> bool:
        with torch.no_grad():
            return bool(ask())

    def compute(self, make: Callable[[], torch.Tensor]) -> torch.Tensor:
        with torch.no_grad():
            return marked(make(), float)

    def taken(self, other: Any) -> Any:
        if not is_written(other):
            return other
        # The mode of the capture lifts the real tensor that stands for it.
        found = other.opened(lambda tensor: tensor)
        return other.settle() if found is None else found.tensor()
