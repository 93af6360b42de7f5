"""Open numbers that a Function is given, for which a capture has tensors: for ``plain_call``."""

from __future__ import annotations

from typing import Any

from torch.overrides import handle_torch_function

from funcaot._torch.levels.functorch import function_mode_active
from funcaot._torch.tensors.sizes.number_log import SETTLED

__all__ = ["NumberToldError", "holds_number", "with_tensors_for_numbers"]


class NumberToldError(Exception):
    """A Function that runs on real values keeps something that may depend on an open number."""


def holds_number(operands: tuple[Any, ...]) -> bool:
    """Whether an operand is an open number."""
    return any(type(value) in SETTLED for value in operands)


def with_tensors_for_numbers(function: type, *operands: Any) -> tuple[type, tuple[Any, ...]]:
    """A Function with its operands, as the modes in force pass them on: without open floats."""
    if function_mode_active():
        return handle_torch_function(with_tensors_for_numbers, (), function, *operands)
    return function, operands
