"""Hooks for every module or optimizer that a capture leaves; ``explained`` takes them back.

They live in dictionaries of the whole process, so those of this thread are told by their handles.
"""

from __future__ import annotations

import contextlib
import sys
import threading
from collections.abc import Iterator
from typing import Any

import torch
from torch.utils.hooks import RemovableHandle

from funcaot._torch.patches import require
from funcaot.base.scopes import SharedPatch, holding

__all__ = ["taking_back"]


class _ThisThread(threading.local):
    """Handles that this thread's capture made, with the dictionary of each."""

    made: list[tuple[Any, Any]] | None = None


_this_thread = _ThisThread()


class _Original:
    """What is replaced."""

    make: Any = None


def _made(self: Any, hooks_dict: Any, *, extra_dict: Any = None) -> None:
    """Stands for ``RemovableHandle.__init__``, with its parameters."""
    _Original.make(self, hooks_dict, extra_dict=extra_dict)
    if _this_thread.made is not None and any(hooks_dict is each for each in _registries()):
        _this_thread.made.append((hooks_dict, self))


def _registries() -> list[Any]:
    """The dictionaries of hooks that run for every module or every optimizer."""
    rooms = vars(torch.nn.modules.module), vars(sys.modules["torch.optim.optimizer"])
    named = [pair for room in rooms for pair in room.items() if pair[0].startswith("_global_")]
    return [value for name, value in named if name.endswith("_hooks")]


def _replace() -> None:
    kind: Any = RemovableHandle
    if kind.__init__ is not _made:
        _Original.make, kind.__init__ = kind.__init__, _made


def _restore() -> None:
    kind: Any = RemovableHandle
    if kind.__init__ is _made:
        kind.__init__ = _Original.make


_patch = SharedPatch(_replace, _restore)


@contextlib.contextmanager
def taking_back() -> Iterator[list[Any]]:
    """Take back hooks that this thread registers inside and leaves there.

    Another capture, or a call as it is, registers them anew.

    Yields:
        What was taken back, once this has ended.
    """
    require("general hooks")
    made: list[tuple[Any, Any]] = []
    left: list[Any] = []
    try:
        with _patch.used(), holding(_this_thread, made=made):
            yield left
    finally:
        for registry, handle in made:
            if handle.id in registry:
                left.append(registry[handle.id])
                handle.remove()
