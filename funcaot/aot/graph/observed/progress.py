"""Says on stderr what is compiled, once that takes long; ``Stages`` tells of each stage."""

from __future__ import annotations

import contextlib
import math
import os
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
# How often it is looked, and how long after the last stage.
_PERIOD, _IDLE = 0.1, 0.5
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

    def __init__(self, what: str, stage: str, ops: int, began: float, due: float) -> None:
        self._what, self._stage, self._ops = what, stage, ops
        self._began, self._due = began, due
        self._bar: Any = None
        self._drawing = threading.Lock()
        self._over = False

    def look(self, now: float) -> None:
        """Show how long the compilation has taken, if that is due; in a terminal every second."""
        with self._drawing:
            if self._over or now < self._due:
                return
            self._show(now - self._began)
            self._due = math.inf if self._bar is None else now + 1.0

    def _show(self, seconds: float) -> None:
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
        """Show nothing more; take it away, if it is a bar."""
        with self._drawing:
            self._over = True
            if self._bar is not None:
                self._bar.stop()
                self._bar = None


class _Watcher:
    """The one thread that shows stages which take long.

    It ends soon after the last one: to start a thread for each stage costs more than most stages.
    """

    def __init__(self) -> None:
        self._thread: threading.Thread | None = None
        self._forget()
        os.register_at_fork(after_in_child=self._forget)

    def _forget(self) -> None:
        self._lines: list[_Line] = []
        self._lock = threading.Lock()

    def add(self, line: _Line) -> None:
        """Look at a line from time to time."""
        with self._lock:
            self._lines.append(line)
            if self._thread is not None and self._thread.is_alive():
                return
            self._thread = threading.Thread(
                target=self._watch, name="funcaot progress", daemon=True
            )
            self._thread.start()

    def remove(self, line: _Line) -> None:
        """Look at it no more."""
        with self._lock, contextlib.suppress(ValueError):
            self._lines.remove(line)

    def _watch(self) -> None:
        last = time.monotonic()
        while True:
            time.sleep(_PERIOD)
            now = time.monotonic()
            with self._lock:
                lines = [*self._lines]
                if not lines and now - last > _IDLE:
                    self._thread = None
                    return
            last = now if lines else last
            for line in lines:
                line.look(now)


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
    due = max(began + _SHORT, _now.began + limit)
    # Most stages are over in milliseconds: nothing is watched that can't be the one that is shown.
    watched = began - _now.began >= limit or stage in _LONG
    line = _Line(what, stage, ops, _now.began, due)
    _now.depth += 1
    try:
        if watched:
            _import_bars()
            _watcher.add(line)
        yield
    finally:
        _now.depth -= 1
        _now.ended = time.monotonic()
        if watched:
            _watcher.remove(line)
            line.close()


_LONG = ("capture", "capture again", "segment", "trace", "decompose", "compile")
_watcher = _Watcher()
