"""How far an open file is; ``state.held`` compares it before and after a function runs.

What ``print(..., file=log)`` and functions of C write there shows in nothing else.
"""

from __future__ import annotations

import _io
import io
import sys
from typing import Any

__all__ = ["position_of"]

_PRINTED = (1, 2)  # where standard output and standard error go


def position_of(thing: Any) -> int | None:
    """Where a file is that can be read or written anywhere; None for anything else.

    The standard streams may be files, too. What is printed isn't refused, and other threads,
    warnings and the library itself print there while a function is captured.
    """
    if not isinstance(thing, _io._IOBase) or isinstance(thing, io.BytesIO | io.StringIO):
        return None
    try:
        if thing is sys.stdout or thing is sys.stderr or thing.fileno() in _PRINTED:
            return None
        return thing.tell() if thing.seekable() else None
    except (OSError, ValueError):  # It is closed, or is being iterated over.
        return None
