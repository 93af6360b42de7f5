"""Settings that change what ops do with a ``DTensor``; signatures and backwards read them."""

from __future__ import annotations

import sys
from typing import Any

import torch

__all__ = ["dispatches_alike", "how_it_dispatches", "loss_is_parallel"]

_TENSORS = "torch.distributed.tensor"
# The handlers that it always has are from its private modules.
_ITS_OWN = f"{_TENSORS}._"


def _dispatcher() -> Any:
    """Who runs ops of ``DTensor``; None where nobody has imported the class."""
    kind = getattr(sys.modules.get(_TENSORS), "DTensor", None)
    return getattr(kind, "_op_dispatcher", None)


def how_it_dispatches() -> tuple[Any, ...]:
    """Whether plain tensors are taken for replicated ones, and which ops somebody handles.

    ``implicit_replication`` changes the one, ``loss_parallel`` and ``context_parallel`` the others.
    Empty where it's as it is by default, also before anybody has imported the class.
    """
    dispatcher = _dispatcher()
    if dispatcher is None:
        return ()
    handlers = dispatcher._custom_op_handlers.items()
    added = [pair for pair in handlers if not _is_its_own(pair[1])]
    found = tuple((str(op), handler) for op, handler in added)
    implicit = dispatcher._allow_implicit_replication
    return (implicit, *sorted(found, key=lambda pair: pair[0])) if implicit or found else ()


def loss_is_parallel() -> bool:
    """Whether ``loss_parallel`` is on: cross entropy and its derivative are computed in parts."""
    dispatcher, op = _dispatcher(), torch.ops.aten.nll_loss_backward.default
    return dispatcher is not None and op in dispatcher._custom_op_handlers


def _is_its_own(handler: Any) -> bool:
    return str(getattr(handler, "__module__", "")).startswith(_ITS_OWN)


class _Alike:
    """Whether ops are dispatched as they were, in a hurry: True only if they are."""

    def __init__(self, dispatcher: Any) -> None:
        self._dispatcher = dispatcher
        self._implicit = dispatcher._allow_implicit_replication
        self._handlers = dispatcher._custom_op_handlers
        self._known = dict(self._handlers)

    def __call__(self) -> bool:
        handlers, dispatcher = self._handlers, self._dispatcher
        return (
            dispatcher._custom_op_handlers is handlers
            and dispatcher._allow_implicit_replication is self._implicit
            and (len(handlers) == len(self._known) and handlers == self._known)
        )


def dispatches_alike() -> Any:
    """What says later, quickly, whether ops are dispatched as now; None where none are."""
    dispatcher = _dispatcher()
    return None if dispatcher is None else _Alike(dispatcher)
