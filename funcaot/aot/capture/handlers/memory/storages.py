"""A storage is asked for or resized, of which a capture has nothing."""

from __future__ import annotations

from typing import Any

from funcaot.aot.capture.handlers.call import Call, InProgress
from funcaot.aot.tape.memory import storages

__all__ = ["refuse_reading", "refuse_resizing"]


def refuse_reading(call: Call, capture: InProgress) -> Any:
    """The storage of an input.

    Raises:
        UnsupportedError: For an input; what the function made itself may be asked.
    """
    if capture.is_in_an_input(call.args[0]):
        raise storages.refuse_storage(capture.name, capture.described(call.args[0]))
    return NotImplemented


def refuse_resizing(call: Call, capture: InProgress) -> Any:
    """Any storage.

    Raises:
        UnsupportedError: Always.
    """
    raise storages.refuse_resizing(capture.name)
