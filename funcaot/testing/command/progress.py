"""Tell on the error stream what is being checked: a line that is rewritten, or lines of a log."""

from __future__ import annotations

import sys
import time
from contextlib import AbstractContextManager, nullcontext
from typing import Any

__all__ = ["progress_line"]

# Where nobody watches a terminal, a row is told of after as many seconds without a line.
_PATIENCE = 10.0


def progress_line(*, quiet: bool) -> AbstractContextManager[Any]:
    """What tells which Function and which row is running; nothing does if quiet."""
    if quiet:
        return nullcontext(None)
    return _Line() if sys.stderr.isatty() else _Log()


class _Line(AbstractContextManager["_Line"]):
    """One line on a terminal, rewritten for each row."""

    def __init__(self) -> None:
        self._function = ""

    def start(self, function: str) -> None:
        """Say which Function comes."""
        self._function = f"{function}: "

    def __call__(self, name: str) -> None:
        """Show the name of the row that runs now."""
        sys.stderr.write(f"\r\x1b[K{self._function}{name} ...")
        sys.stderr.flush()

    def __exit__(self, *details: object) -> None:
        """Clear the line."""
        sys.stderr.write("\r\x1b[K")
        sys.stderr.flush()


class _Log(AbstractContextManager["_Log"]):
    """A line for each Function, and for a row now and then where a Function takes long."""

    def __init__(self) -> None:
        self._told = time.monotonic()

    def start(self, function: str) -> None:
        """Say which Function comes."""
        self._tell(f"checking {function}")

    def __call__(self, name: str) -> None:
        """Say which row comes, if nothing was said for a while."""
        if time.monotonic() - self._told > _PATIENCE:
            self._tell(f"  ... {name}")

    def _tell(self, line: str) -> None:
        self._told = time.monotonic()
        sys.stderr.write(f"{line}\n")
        sys.stderr.flush()

    def __exit__(self, *details: object) -> None:
        """Nothing is left to clear."""
