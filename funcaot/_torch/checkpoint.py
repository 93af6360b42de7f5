"""Private names of ``torch.utils.checkpoint``: see its regions while a capture runs."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable, Iterator
from typing import Any

import torch
import torch.utils.checkpoint as checkpoint

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


class _Shared:
    """The originals while they are replaced, over all threads."""

    users = 0
    generator: Any = None
    function: Any = None


_this_thread = _ThisThread()
_lock = threading.Lock()


def _generator(*args: Any, **kwargs: Any) -> Iterator[None]:
    """What runs around a checkpointed function: in a capture the region is only noted."""
    region = _this_thread.region
    if region is None:
        yield from _Shared.generator(*args, **kwargs)
        return
    with region():
        yield


class _Reentrant:
    """Stands for ``CheckpointFunction``: in a capture both kinds of checkpoint are the same."""

    @staticmethod
    def apply(function: Callable[..., Any], preserve: bool, *args: Any) -> Any:
        region = _this_thread.region
        if region is None:
            return _Shared.function.apply(function, preserve, *args)
        with region():
            return function(*args)


@contextlib.contextmanager
def observing_checkpoints(region: Region) -> Iterator[None]:
    """Run checkpointed functions of this thread plainly, inside ``region()``.

    A checkpoint's own hooks would run the function again while the frontier is read, and draw
    other random numbers there; the partition recomputes by itself instead.
    """
    with _lock:
        if _Shared.users == 0:
            _Shared.generator = getattr(checkpoint, _GENERATOR)
            _Shared.function = checkpoint.CheckpointFunction
            setattr(checkpoint, _GENERATOR, _generator)
            checkpoint.CheckpointFunction = _Reentrant  # type: ignore[misc, assignment]
        _Shared.users += 1
    before, _this_thread.region = _this_thread.region, region
    try:
        yield
    finally:
        _this_thread.region = before
        with _lock:
            _Shared.users -= 1
            if _Shared.users == 0:
                setattr(checkpoint, _GENERATOR, _Shared.generator)
                checkpoint.CheckpointFunction = _Shared.function  # type: ignore[misc]
