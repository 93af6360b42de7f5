"""How far an open file is; ``state.held`` compares it before and after a function runs.

What ``print(..., file=log)`` and functions of C write there shows in nothing else.
"""

from __future__ import annotations

import _io
import io
from typing import Any

__all__ = ["position_of"]


def position_of(thing: Any) -> int | None:
    """Where a file is that can be read or written anywhere; None for anything else."""
    if not isinstance(thing, _io._IOBase) or isinstance(thing, io.BytesIO | io.StringIO):
        return None
    try:
        return thing.tell() if thing.seekable() else None
    except (OSError, ValueError):  # It is closed, or is being iterated over.
        return None
