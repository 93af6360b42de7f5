"""Says on stderr what is compiled, once that takes long; ``Stages`` tells of each stage."""

from __future__ import annotations

import contextlib
import random
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
# In the order of the pipeline; what is called "again" follows in the place of the first time.
_OF_CALLS = ("capture", "sharing", "effects", "segment", "in place", "environment", "versions")
_OF_DERIVATIVES = ("tangents", "trace", "segment", "environment")
_OF_GRAPHS = ("share", "contract", "decompose", "check", "compile")


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
    """A bar in a terminal; where there is none, a line."""

    def __init__(self, what: str, stage: str, ops: int) -> None:
        self._what, self._stage, self._ops = what, stage, ops
        self._bar: Any = None
        self.shown = False

    def show(self, seconds: float) -> None:
        """Say how long the compilation has taken."""
        self.shown = True
        size = f", {self._ops} ops" if self._ops else ""
        console = _console()
        if console is None:
            sys.stderr.write(
                f"funcaot: compiling {self._what}: {self._stage}{size}, {seconds:.0f} s so far\n"
            )
            sys.stderr.flush()
        elif self._bar is None:
            self._bar = _bar(console)
            done, stages = _place(self._what, self._stage)
            text = f"compiling {self._what}: {self._stage}{size}"
            self._task = self._bar.add_task(text, completed=done, total=stages, taken=seconds)
            self._bar.start()
        else:
            self._bar.update(self._task, taken=seconds)

    def close(self) -> None:
        """Take it away, if it is a bar."""
        if self._bar is not None:
            self._bar.stop()
            self._bar = None


def _console() -> Any:
    """A terminal that can be drawn on, None if there is none."""
    if not sys.stderr.isatty():
        return None
    try:
        from rich.console import Console
    except ImportError:
        return None
    console = Console(stderr=True)
    return None if console.is_dumb_terminal else console


def _import_bars() -> None:
    """Import what draws bars, before the user's function runs: that draws a random number."""
    if "rich.progress" in sys.modules or not sys.stderr.isatty():
        return
    state = random.getstate()
    with contextlib.suppress(ImportError):
        import rich.progress  # noqa: F401
    random.setstate(state)


def _bar(console: Any) -> Any:
    """A bar that moves with the stages; the streams stay the ones that a function may look at."""
    from rich.progress import BarColumn, Progress, TextColumn

    return Progress(
        TextColumn("funcaot: {task.description}", markup=False),
        BarColumn(20),
        TextColumn("{task.completed:.0f}/{task.total:.0f} stages, {task.fields[taken]:.0f} s"),
        console=console,
        transient=True,
        redirect_stdout=False,
        redirect_stderr=False,
    )


def _place(what: str, stage: str) -> tuple[int, int]:
    """How many stages come before one, and how many there are."""
    stages = _OF_GRAPHS if stage in _OF_GRAPHS else _OF_CALLS
    if what.startswith(("backward of ", "pushforward of ")) and stages is _OF_CALLS:
        stages = _OF_DERIVATIVES
    first = stage.removesuffix(" again")
    return (stages.index(first) if first in stages else 0), len(stages)


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
    line, since = _Line(what, stage, ops), _now.began
    over, drawing = threading.Event(), threading.Lock()

    def watch() -> None:
        """Wait, and tell; again and again in a terminal."""
        wait = max(_SHORT, limit - (time.monotonic() - since))
        while not over.wait(wait):
            with drawing:
                if over.is_set():
                    return
                line.show(time.monotonic() - since)
            if _console() is None:
                return
            wait = 1.0

    watcher = None
    late = began - since >= limit
    # Most stages are over in milliseconds: no thread for one that can't be the one that is shown.
    if late or stage in _LONG:
        _import_bars()
        watcher = threading.Thread(target=watch, name="funcaot progress", daemon=True)
        watcher.start()
    _now.depth += 1
    try:
        yield
    finally:
        _now.depth -= 1
        _now.ended = time.monotonic()
        with drawing:
            over.set()
        # Nobody waits for a thread that has shown nothing: most stages are short.
        if watcher is not None and line.shown:
            watcher.join()
            line.close()


_LONG = ("capture", "capture again", "segment", "trace", "decompose", "compile")
