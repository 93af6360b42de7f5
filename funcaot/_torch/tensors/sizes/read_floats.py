"""Where a capture notes the floats that its function reads off tensors (``OpenFloat.of_tensor``).

``aot.state`` says whether they may stay in the graph, ``aot.tape.known.read_numbers`` makes them.
"""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Iterator
from typing import Any

from funcaot._torch.tensors.sizes.number_log import NumberLog
from funcaot._torch.tensors.sizes.open_floats import OpenFloat
from funcaot.base.scopes import holding

__all__ = ["current", "is_read", "reading"]


class _ThisThread(threading.local):
    log: NumberLog | None = None


_this_thread = _ThisThread()


@contextlib.contextmanager
def reading(log: NumberLog | None) -> Iterator[None]:
    """Let numbers stay in the graph inside, noted in a log; None if each is to be read."""
    with holding(_this_thread, log=log):
        yield


def current() -> NumberLog | None:
    """Where such numbers are noted in this thread."""
    return _this_thread.log


def is_read(value: Any) -> bool:
    """Whether a value stands for a number that is read off a tensor."""
    return type(value) is OpenFloat and value.is_read
