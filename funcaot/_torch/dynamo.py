"""Dynamo beside a capture: neither captures the other."""

from __future__ import annotations

import contextlib
import os
import sys
import threading
from collections.abc import Iterator
from typing import Any

import torch
from torch.compiler import is_dynamo_compiling

__all__ = ["is_dynamo_compiling", "without_dynamo"]


class _Captures:
    """How many captures run now, and the stance that gives ``torch.compile`` back its work."""

    lock = threading.Lock()
    count = 0
    stance: Any = None


@contextlib.contextmanager
def without_dynamo() -> Iterator[None]:
    """What ``torch.compile`` compiled runs as written, so that it's recorded; it isn't entered.

    The stance is torch's for the whole process: what other threads call meanwhile runs as written
    too, which means the same.
    """
    if "torch._dynamo" not in sys.modules:
        yield
        return
    set_eval_frame = sys.modules["torch._C._dynamo.eval_frame"].set_eval_frame
    before = set_eval_frame(None)
    try:
        with _Captures.lock:
            _Captures.count += 1
            if _Captures.count == 1:
                _Captures.stance = torch.compiler.set_stance("force_eager")
        try:
            yield
        finally:
            with _Captures.lock:
                _Captures.count -= 1
                if not _Captures.count:
                    _restore()
    finally:
        set_eval_frame(before)


def _restore() -> None:
    stance, _Captures.stance = _Captures.stance, None
    if stance is not None:
        stance.__exit__(None, None, None)


def _after_fork() -> None:
    """Captures of the parent's other threads don't go on in the child."""
    _Captures.lock = threading.Lock()
    if _Captures.count and threading.active_count() == 1:
        _Captures.count = 0
        _restore()


os.register_at_fork(after_in_child=_after_fork)
