"""Send every ``torch.autograd.Function.apply`` through the operator, while asked to."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Iterator
from types import TracebackType
from typing import Any

from funcaot._torch.interception import ReplacedApply
from funcaot.class_cache import forget_classes
from funcaot.function import custom_function_call

__all__ = ["install", "intercepting", "uninstall"]

# What goes its own way; compiled programs are Functions too.
_NOT_INTERCEPTED = (
    "funcaot.aot.",
    "torch._dynamo",
    "torch._functorch",
    "torch._inductor",
    "torch._higher_order_ops",
    "torch.distributed",
    # A module's backward hooks count the gradients of its node.
    "torch.nn.modules._functions.BackwardHookFunction",
    "torch.utils.checkpoint",
)
_lock = threading.RLock()


class _State:
    """Who wants interception now, over all threads."""

    everywhere = 0
    users = 0
    replaced: Any = None


class _ThisThread(threading.local):
    depth = 0


_this_thread = _ThisThread()


def _wants(cls: type) -> bool:
    """Whether a call of a class in this thread goes through the operator now."""
    if not (_State.everywhere or _this_thread.depth):
        return False
    return not f"{cls.__module__}.{cls.__qualname__}".startswith(_NOT_INTERCEPTED)


def _call(cls: type, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    return custom_function_call(cls, *args, **kwargs)


def _acquire() -> None:
    with _lock:
        if _State.users == 0:
            _State.replaced = ReplacedApply(_call, _wants)
        _State.users += 1


def _release() -> None:
    with _lock:
        _State.users -= 1
        if _State.users == 0:
            _State.replaced.undo()
            forget_classes()


class _Installation(contextlib.AbstractContextManager[None]):
    """What :func:`install` returns: nothing to do with it, or one ``with`` block."""

    def __enter__(self) -> None:
        return None

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        uninstall()


def install() -> contextlib.AbstractContextManager[None]:
    """Send every Function of this process through the operator, third-party ones too.

    They then have rules for every transform without being edited. Installs nest and may come from
    several threads; each needs its own :func:`uninstall`.

    Returns:
        A context manager that uninstalls at the end of its block.

    Example:
        >>> import funcaot
        >>> with funcaot.install():
        ...     pass  # any torch.autograd.Function works under vmap, jvp, functionalize, ...
    """
    with _lock:
        _acquire()
        _State.everywhere += 1
    return _Installation()


def uninstall() -> None:
    """Undo one :func:`install`; the last one restores torch exactly. Without one, do nothing."""
    with _lock:
        if _State.everywhere:
            _State.everywhere -= 1
            _release()


@contextlib.contextmanager
def intercepting() -> Iterator[None]:
    """Intercept in this thread only, as a capture does while it runs."""
    _acquire()
    _this_thread.depth += 1
    try:
        yield
    finally:
        _State.replaced.settle()
        _this_thread.depth -= 1
        _release()
