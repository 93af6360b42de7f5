"""Send every ``torch.autograd.Function.apply`` through the operator, while asked to."""

from __future__ import annotations

import contextlib
import functools
import threading
from collections.abc import Callable, Iterator
from types import TracebackType
from typing import Any

from funcaot._torch.calls.interception import replaced_apply, require_interception
from funcaot._torch.levels.flex_attention import (
    install_flex_attention,
    uninstall_flex_attention,
)
from funcaot.base.scopes import SharedPatch, holding
from funcaot.classes.class_cache import forget_classes
from funcaot.derivatives import custom_ops
from funcaot.derivatives.attention.flexible import flexible_attention
from funcaot.derivatives.kernels import install_derivatives, uninstall_derivatives
from funcaot.errors import UnsupportedError
from funcaot.functions.function import Function, custom_function_call
from funcaot.transforms.forms.without_levels import register_interception

__all__ = ["install", "intercepting", "intercepting_ops", "observing", "uninstall"]

Observer = Callable[[type, tuple[Any, ...], dict[str, Any]], None]

# What goes its own way; compiled programs are Functions too.
_NOT_INTERCEPTED = (
    "funcaot.aot.",
    "funcaot.derivatives.",
    "funcaot.distributed.",
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
    has_ops = False


_this_thread = _ThisThread()


def _wants(cls: type) -> bool:
    """Whether a call of a class in this thread goes through the operator now."""
    if not (_patch.is_installed or _this_thread.captures):
        return _this_thread.has_ops and cls.__module__ == custom_ops.MODULE
    return not f"{cls.__module__}.{cls.__qualname__}".startswith(_NOT_INTERCEPTED)


_observers: list[Observer] = []


def _call(cls: type, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    for observer in _observers:
        observer(cls, args, kwargs)
    if cls.__module__ == custom_ops.MODULE:
        return custom_ops.apply_at_level(cls, args)
    return custom_function_call(cls, *args, **kwargs)


@functools.cache
def _replaced() -> Any:
    return replaced_apply(_call, _wants)


_patch = SharedPatch(lambda: _replaced().install(), lambda: _replaced().undo(), lasts=True)
# Of each install, whether torch looked as it was known.
_flex_attentions: list[bool] = []
_when_uninstalled: list[Callable[[], None]] = []


def when_uninstalled(callback: Callable[[], None]) -> None:
    """Call ``callback`` whenever the last :func:`install` is taken back."""
    _when_uninstalled.append(callback)


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

    They then have rules for every transform without being edited; and ops that torch can't
    differentiate, like fused attention twice, have the derivatives of
    :func:`register_derivative`'s table. Installs nest and may come from
    several threads; each needs its own :func:`uninstall`.

    Raises:
        UnsupportedError: This torch looks different where calls of Functions are seen.

    Returns:
        A context manager that uninstalls at the end of its block.

    Example:
        >>> import funcaot
        >>> with funcaot.install():
        ...     pass  # any torch.autograd.Function works under vmap, jvp, functionalize, ...
    """
    require_interception()
    _patch.install()
    install_derivatives()
    _flex_attentions.append(install_flex_attention(flexible_attention))
    return _Installation()


def uninstall() -> None:
    """Undo one :func:`install`; the last one restores torch exactly.

    So it does without one, where no compiled function is left that ``torch.func`` has to know.

    Example:
        >>> import torch, funcaot
        >>> class Square(torch.autograd.Function):
        ...     generate_vmap_rule = True
        ...     forward = staticmethod(lambda x: x * x)
        ...     setup_context = staticmethod(lambda ctx, inputs, output: None)
        ...     backward = staticmethod(lambda ctx, gradient: gradient)
        >>> with funcaot.install():  # which ends with it
        ...     torch.func.vmap(Square.apply)(torch.tensor([1.0, 2.0]))
        tensor([1., 4.])
    """
    installed = _patch.is_installed
    _patch.uninstall()
    uninstall_derivatives()
    if _flex_attentions and _flex_attentions.pop():
        uninstall_flex_attention()
    if not _patch.is_installed:
        if installed:
            forget_classes()
        for callback in _when_uninstalled:
            callback()


@contextlib.contextmanager
def intercepting() -> Iterator[None]:
    """Intercept in this thread only, as a capture does while it runs."""
    require_interception()
    with _patch.used(), holding(_this_thread, captures=True):
        try:
            yield
        finally:
            _replaced().settle()


@contextlib.contextmanager
def intercepting_ops() -> Iterator[None]:
    """Intercept in this thread what torch makes of ops of ``torch.library``, and nothing else.

    So that a call which isn't captured has the derivatives of these that a captured one has. Where
    torch looks different there is nothing to intercept, and the call is torch's.
    """
    try:
        require_interception()
    except UnsupportedError:
        yield
        return
    with _patch.used(), holding(_this_thread, has_ops=True):
        try:
            yield
        finally:
            _replaced().settle()


@contextlib.contextmanager
def observing(observer: Observer) -> Iterator[None]:
    """Tell of every Function that is called in this process, and intercept them all.

    Args:
        observer: Called with the class and its arguments before each call.
    """
    own = Function.__dict__["apply"]

    def apply(cls: type, *args: Any, **kwargs: Any) -> Any:
        return _call(cls, args, kwargs)

    Function.apply = classmethod(apply)  # type: ignore[assignment,method-assign]
    _observers.append(observer)
    try:
        with install():
            yield
    finally:
        _observers.remove(observer)
        Function.apply = own


register_interception(intercepting)
