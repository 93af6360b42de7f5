"""Where in the user's code an op was called."""

from __future__ import annotations

import os
import sys
import warnings
from types import FrameType
from typing import NamedTuple

from funcaot.base.tracebacks import is_users_file

_DEPTH = 200


class Location(NamedTuple):
    """A line of code."""

    file: str
    line: int

    def __str__(self) -> str:
        """``model.py:12``."""
        return f"{os.path.basename(self.file)}:{self.line}"


def warn_user(message: str, category: type[Warning]) -> None:
    """Warn of the innermost line that belongs neither to torch nor to funcaot."""
    frame: FrameType | None = sys._getframe(1)
    level = 2
    for _ in range(_DEPTH):
        if frame is None or is_users_file(frame.f_code.co_filename):
            break
        frame, level = frame.f_back, level + 1
    warnings.warn(message, category, stacklevel=level if frame is not None else 2)


def calling_line() -> Location | None:
    """The innermost line that belongs neither to torch nor to funcaot, None if there is none."""
    frame: FrameType | None = sys._getframe(1)
    for _ in range(_DEPTH):
        if frame is None:
            return None
        if is_users_file(frame.f_code.co_filename):
            return Location(frame.f_code.co_filename, frame.f_lineno)
        frame = frame.f_back
    return None
