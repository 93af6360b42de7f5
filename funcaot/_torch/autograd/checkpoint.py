"""Private names of ``torch.utils.checkpoint``: see its regions while a capture runs."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable, Iterator
from typing import Any

import torch
import torch.utils.checkpoint as checkpoint

from funcaot._torch.patches import require
from funcaot.base.scopes import SharedPatch, holding

__all__ = ["observing_checkpoints", "sequence_number"]

# Since torch 2.14 the name without a suffix is for callers outside of the module.
_GENERATOR = "_checkpoint_without_reentrant_generator"
if hasattr(checkpoint, f"{_GENERATOR}_impl"):
    _GENERATOR = f"{_GENERATOR}_impl"

Region = Callable[[], contextlib.AbstractContextManager[Any]]


def sequence_number() -> int:
    """The number that autograd gives to the next node of this thread."""
    return torch.autograd._get_sequence_nr()  # type: ignore[attr-defined]


class _ThisThread(threading.local):
    region: Region | None = None


class _Originals:
    """What is replaced."""

    generator: Any = None
    function: Any = None


_this_thread = _ThisThread()


def _generator(*args: Any, **kwargs: Any) -> Iterator[None]:
    """What runs around a checkpointed function: in a capture the region is only noted."""
    region = _this_thread.region
    if region is None:
        yield from _Originals.generator(*args, **kwargs)
        return
    with region():
        yield


class _Reentrant:
    """Stands for ``CheckpointFunction``: in a capture both kinds of checkpoint are the same."""

    @staticmethod
    def apply(function: Callable[..., Any], preserve: bool, *args: Any) -> Any:
        region = _this_thread.region
        if region is None:
            return _Originals.function.apply(function, preserve, *args)
        with region():
            return function(*args)


def _observe() -> None:
    if getattr(checkpoint, _GENERATOR) is not _generator:
        _Originals.generator = getattr(checkpoint, _GENERATOR)
        setattr(checkpoint, _GENERATOR, _generator)
    if checkpoint.CheckpointFunction is not _Reentrant:
        _Originals.function = checkpoint.CheckpointFunction
        checkpoint.CheckpointFunction = _Reentrant  # type: ignore[misc, assignment]


def _restore() -> None:
    setattr(checkpoint, _GENERATOR, _Originals.generator)
    checkpoint.CheckpointFunction = _Originals.function  # type: ignore[misc]


_patch = SharedPatch(_observe, _restore, lasts=True)


@contextlib.contextmanager
def observing_checkpoints(region: Region) -> Iterator[None]:
    """Run checkpointed functions of this thread plainly, inside ``region()``.

    A checkpoint's own hooks would run the function again while the frontier is read, and draw
    other random numbers there; the partition recomputes by itself instead.
    """
    require("checkpoints")
    with _patch.used(), holding(_this_thread, region=region):
        yield
