"""Garbage collections that ``pipeline`` puts off while a graph is compiled."""

from __future__ import annotations

import gc
from contextlib import AbstractContextManager

from funcaot.base.scopes import SharedPatch

__all__ = ["without_full_collections"]

# New objects after which Python looks at them, and how many such looks come before a full one.
_YOUNG, _NEVER = 10_000, 1 << 30


class _Thresholds:
    """Python's thresholds, which are others while somebody compiles."""

    def __init__(self) -> None:
        self._before: tuple[int, int, int] | None = None
        self._set: tuple[int, int, int] | None = None

    def change(self) -> None:
        if self._before is not None:
            return
        before = gc.get_threshold()
        if before[0] == 0:  # Nothing is collected by itself.
            return
        self._set = (max(before[0], _YOUNG), before[1], _NEVER)
        self._before = before
        gc.set_threshold(*self._set)

    def undo(self) -> None:
        before, self._before = self._before, None
        # Somebody may have set others meanwhile, in another thread.
        if before is not None and gc.get_threshold() == self._set:
            gc.set_threshold(*before)


_thresholds = _Thresholds()
_patch = SharedPatch(_thresholds.change, _thresholds.undo)


def without_full_collections() -> AbstractContextManager[None]:
    """What is old isn't looked through for garbage inside; what is new is, less often.

    A large graph makes a million objects, nearly all of which are kept until its program is made. A
    full collection visits them all and those of everything imported, and comes several times.
    """
    return _patch.used()
