"""Says on stderr what is compiled, once that takes long; ``Stages`` tells of each stage."""

from __future__ import annotations

import contextlib
import sys
import threading
import time
from collections.abc import Iterator
from typing import Any

from funcaot import config

__all__ = ["showing"]

# Stages that follow one another so fast belong to one compilation, but for those that begin one.
_PAUSE = 0.05
_FIRST = ("capture", "tangents")
# Shorter stages aren't worth a line.
_SHORT = 0.2


class _Compilation(threading.local):
    """What this thread compiles.

    Attributes:
        began: When the compilation began.
        ended: When its last stage was over.
        depth: Stages in progress, one in another.
    """

    began = ended = 0.0
    depth = 0


class _Line:
    """One line of a terminal that changes, or a line for each stage where there is no terminal."""

    def __init__(self) -> None:
        self._status: Any = None

    def show(self, text: str) -> None:
        """Show a text in place of the one before."""
        console = _console()
        if console is None:
            sys.stderr.write(f"funcaot: {text}\n")
            sys.stderr.flush()
            return
        if self._status is None:
            self._status = console.status(text)
            self._status.start()
        else:
            self._status.update(text)

    def close(self) -> None:
        """Take it away, if it is one that changes."""
        if self._status is not None:
            self._status.stop()
            self._status = None


def _console() -> Any:
    """A terminal that can be drawn on, None if there is none."""
    if not sys.stderr.isatty():
        return None
    try:
        from rich.console import Console
    except ImportError:
        return None
    return Console(stderr=True)


_now = _Compilation()


@contextlib.contextmanager
def showing(what: str, stage: str, ops: int) -> Iterator[None]:
    """While a stage runs; after a few seconds of a compilation it is shown.

    Args:
        what: What is compiled.
        stage: The stage.
        ops: How many ops its graph has, 0 if that isn't known.
    """
    limit = config.get().progress_after
    if not limit or _now.depth:
        yield
        return
    began = time.monotonic()
    if stage in _FIRST or began - _now.ended > _PAUSE:
        _now.began = began
    line, since = _Line(), _now.began

    def tell() -> None:
        size = f", {ops} ops" if ops else ""
        line.show(f"compiling {what}: {stage}{size}, {time.monotonic() - since:.0f} s so far")

    over = threading.Event()

    def watch() -> None:
        """Wait, and tell; again and again in a terminal."""
        wait = max(_SHORT, limit - (time.monotonic() - since))
        while not over.wait(wait):
            tell()
            if _console() is None:
                return
            wait = 1.0

    watcher = None
    late = began - since >= limit
    # Most stages are over in milliseconds: no thread for one that can't be the one that is shown.
    if late or stage in _LONG:
        watcher = threading.Thread(target=watch, name="funcaot progress", daemon=True)
        watcher.start()
    _now.depth += 1
    try:
        yield
    finally:
        _now.depth -= 1
        _now.ended = time.monotonic()
        over.set()
        if watcher is not None:
            watcher.join()
            line.close()


_LONG = ("capture", "capture again", "segment", "trace", "decompose", "compile")
