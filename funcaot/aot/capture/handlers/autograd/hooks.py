"""Hooks of tensors that the function makes: what they close over, a backward asks for."""

from __future__ import annotations

from typing import Any

from funcaot.aot.capture.handlers.call import Call, InProgress

__all__ = ["note"]


def note(call: Call, capture: InProgress) -> Any:
    """``tensor.register_hook(hook)``: the hook may compute with any tensor of the call."""
    capture.tape.closed_over.note_hook(call.args, call.kwargs)
    return NotImplemented
