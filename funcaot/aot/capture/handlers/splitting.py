"""Splits whose results autograd takes for tensors of their own (``unsafe_split``)."""

from __future__ import annotations

from typing import Any

from funcaot._torch.autograd import autograd
from funcaot.aot.capture.handlers.call import Call, InProgress

__all__ = ["UNSAFE", "split"]

UNSAFE = ("unsafe_split", "unsafe_chunk", "unsafe_split_with_sizes")


def split(call: Call, capture: InProgress) -> Any:
    """Note the source with its version: a write to a piece or to it is an error."""
    pieces = call.run()
    source = call.args[0] if call.args else call.kwargs["input"]
    capture.events.unsafe.append((source, autograd.version_of(source), tuple(pieces)))
    return pieces
