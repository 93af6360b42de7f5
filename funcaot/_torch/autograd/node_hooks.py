"""Hooks around a call that see each node of autograd as it is made, which torch has since 2.15.

They are the caller's, while the nodes of a capture are a program's: what a hook registers on one of
these would be a part of every call. Torch tells nobody which are on, so that is remembered.
"""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch.autograd import graph

from funcaot._torch.patches import is_usable
from funcaot.base.scopes import holding

__all__ = ["without_node_hooks"]

_NAME = "node hooks"
_KIND: Any = getattr(graph, "node_creation_hook", None)


class _ThisThread(threading.local):
    """The hooks that are on in this thread, outermost first, and whether those around are aside."""

    def __init__(self) -> None:
        self.hooks: list[Callable[[Any], None]] = []
        self.aside = False


_this_thread = _ThisThread()


def _remember() -> None:
    enter, leave = _KIND.__enter__, _KIND.__exit__

    def entered(context: Any) -> None:
        enter(context)
        _this_thread.hooks.append(context.hook)

    def left(context: Any, *error: object) -> None:
        leave(context, *error)
        if _this_thread.hooks:
            _this_thread.hooks.pop()

    _KIND.__enter__, _KIND.__exit__ = entered, left


if _KIND is not None and is_usable(_NAME):
    _remember()


@contextlib.contextmanager
def without_node_hooks() -> Iterator[None]:
    """Inside, only hooks that are entered there see nodes; those around do so again afterwards."""
    around = _this_thread.hooks
    if _KIND is None or _this_thread.aside:
        yield
        return
    with holding(_this_thread, aside=True, hooks=[]):
        for _ in around:
            torch._C._autograd._pop_node_creation_hook()  # type: ignore[attr-defined]
        try:
            yield
        finally:
            for hook in around:
                torch._C._autograd._push_node_creation_hook(hook)  # type: ignore[attr-defined]
