"""Whether a backward goes through the whole graph: Functions that fill ``.grad`` themselves ask.

Torch says no inside of ``autograd.grad``, by which a backward is traced on the tape. What it says
of the backward that is traced is given instead, and noted: a program is for that answer.
"""

from __future__ import annotations

import contextlib
import sys
import threading
from collections.abc import Iterator
from types import FrameType
from typing import Any

import torch
from torch.autograd.graph import _engine_run_backward

from funcaot._torch.distributed.asked import WHOLE, is_whole
from funcaot._torch.patches import is_usable
from funcaot.base.scopes import SharedPatch, holding

__all__ = ["noting_whole_backwards"]

_ENGINE = _engine_run_backward.__code__


class _ThisThread(threading.local):
    """This thread's trace.

    Attributes:
        noted: Where the answer is noted.
        whole: The answer, for the backward that is traced.
        depth: In how many runs of the engine it is traced.
    """

    noted: dict[str, Any] | None = None
    whole: bool = True
    depth: int = 0


class _Original:
    """What is replaced."""

    function: Any = None


_this_thread = _ThisThread()


def _is_checkpoint_valid() -> bool:
    """Stands for torch's function of that name."""
    noted = _this_thread.noted
    if noted is None:
        return _Original.function()
    runs = _runs(sys._getframe(1))
    inside = runs[: len(runs) - _this_thread.depth - 1]  # One is that on the tape.
    if any(frame.f_locals["args"][3] for frame in inside):  # inputs
        return False
    return noted.setdefault(WHOLE, _this_thread.whole)


def _runs(frame: FrameType | None) -> list[FrameType]:
    """The runs of autograd's engine that a frame is in, from the inside."""
    found = []
    while frame is not None:
        if frame.f_code is _ENGINE:
            found.append(frame)
        frame = frame.f_back
    return found


def _replace() -> None:
    engine: Any = torch.autograd
    if engine._is_checkpoint_valid is not _is_checkpoint_valid:
        _Original.function = engine._is_checkpoint_valid
        engine._is_checkpoint_valid = _is_checkpoint_valid


def _restore() -> None:
    torch.autograd._is_checkpoint_valid = _Original.function  # type: ignore[attr-defined]


_patch = SharedPatch(_replace, _restore)


@contextlib.contextmanager
def noting_whole_backwards(found: dict[str, Any]) -> Iterator[None]:
    """Answer for the backward that is traced inside, and note the answer if somebody asks.

    Args:
        found: Where it is noted, as what is asked of process groups is.
    """
    if not is_usable("whole backwards"):
        yield
        return
    depth = len(_runs(sys._getframe(1)))
    with _patch.used(), holding(_this_thread, noted=found, whole=is_whole(), depth=depth):
        yield
