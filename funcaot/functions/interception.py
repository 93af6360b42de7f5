"""Send every ``torch.autograd.Function.apply`` through the operator, while asked to."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Iterator
from types import TracebackType
from typing import Any

from funcaot._torch.calls.interception import ReplacedApply
from funcaot.classes.class_cache import forget_classes
from funcaot.functions.function import custom_function_call
from funcaot.scopes import SharedPatch, holding
from funcaot.transforms.without_levels import register_interception

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


class _ThisThread(threading.local):
    captures = False


_this_thread = _ThisThread()


def _wants(cls: type) -> bool:
    """Whether a call of a class in this thread goes through the operator now."""
    if not (_patch.is_installed or _this_thread.captures):
        return False
    return not f"{cls.__module__}.{cls.__qualname__}".startswith(_NOT_INTERCEPTED)


def _call(cls: type, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    return custom_function_call(cls, *args, **kwargs)


_replaced = ReplacedApply(_call, _wants)


_patch = SharedPatch(_replaced.install, _replaced.undo)


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
    _patch.install()
    return _Installation()


def uninstall() -> None:
    """Undo one :func:`install`; the last one restores torch exactly. Without one, do nothing."""
    installed = _patch.is_installed
    _patch.uninstall()
    if installed and not _patch.is_installed:
        forget_classes()


@contextlib.contextmanager
def intercepting() -> Iterator[None]:
    """Intercept in this thread only, as a capture does while it runs."""
    with _patch.used(), holding(_this_thread, captures=True):
        try:
            yield
        finally:
            _replaced.settle()


register_interception(intercepting)
