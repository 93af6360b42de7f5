"""Interception where ``torch.autograd.Function.apply`` is C++ (torch 2.14 and later).

Nothing can be put in front of a bound ``apply`` that somebody kept, but it asks Python on its way:

1. for ``cls.setup_context``;
2. if that isn't the one of the base class, ``_bind_default_args`` for the arguments;
3. whether a functorch level is active; if so, ``_call_custom_function_call`` for the result.

So ``setup_context`` of a wanted class is made to look defined (1), a level is pushed where the
arguments are bound (2), and popped where the result is asked for (3), which is the hook's. Between
the two no op runs.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

import torch
from torch._C import _are_functorch_transforms_active as transforms_active
from torch._C import _functorch as functorch  # pyright: ignore[reportAttributeAccessIssue]
from torch.autograd import function as torch_functions

from funcaot._torch.autograd.autograd import native_apply
from funcaot._torch.calls.code_swap import CodeSwap

__all__ = ["NativeApply", "past_interception"]

_METACLASS: type = type(torch.autograd.Function)
_NAME = "setup_context"
_BASES = (torch.autograd.Function, torch_functions._SingleLevelFunction)
_BASE = torch_functions._SingleLevelFunction.setup_context


class _LooksDefined:
    """The ``setup_context`` of a class that has none: equal to it, and not the same object."""

    def __eq__(self, other: object) -> bool:
        return other is self or other is _BASE

    def __hash__(self) -> int:
        return hash(_BASE)

    def __call__(self, ctx: Any, inputs: tuple[Any, ...], output: Any) -> Any:
        return _BASE(ctx, inputs, output)


class _Calling(threading.local):
    """How far a call in this thread has come.

    Attributes:
        wanted: Its class is wanted, and its arguments are bound next.
        pushed: A level was pushed.
        let_past: A class whose next call isn't intercepted.
        questions: How often that call still asks for ``setup_context``.
    """

    wanted = False
    pushed = False
    let_past: type | None = None
    questions = 0


_calling = _Calling()
# Before it binds the arguments, and before it calls forward.
_QUESTIONS_OF_A_CALL = 2


def past_interception(function: type) -> Callable[..., Any]:
    """The ``apply`` of a Function class, not intercepted itself; what its forward calls may be."""
    native = native_apply(function)

    def apply(*args: Any) -> Any:
        if _NAME not in _METACLASS.__dict__:
            return native(*args)
        _calling.let_past, _calling.questions = function, _QUESTIONS_OF_A_CALL
        try:
            return native(*args)
        finally:
            _calling.let_past = None

    return apply


class _Asked:
    """A property of every Function class, so that it is seen which one is asked for."""

    def __init__(self, wants: Callable[[type], bool]) -> None:
        self._wants = wants
        self._stand_in = _LooksDefined()

    def __get__(self, cls: type | None, kind: type) -> Any:
        if cls is None:
            return self
        found = _looked_up(cls)
        if cls in _BASES:  # what the class's own is compared with, once per process
            return found
        _calling.wanted = self._is_wanted(cls)
        return self._stand_in if _calling.wanted and found is _BASE else found

    def _is_wanted(self, cls: type) -> bool:
        if not issubclass(cls, torch.autograd.Function) or not self._wants(cls):
            return False
        if _calling.let_past is not cls:
            return True
        _calling.questions -= 1
        if _calling.questions == 0:
            _calling.let_past = None
        return False

    def __set__(self, cls: type, value: Any) -> None:
        with self._aside():
            setattr(cls, _NAME, value)

    def __delete__(self, cls: type) -> None:
        with self._aside():
            delattr(cls, _NAME)

    def _aside(self) -> _Aside:
        return _Aside(self)


class _Aside:
    """While the property isn't there, so that the class's own attribute can be reached."""

    _lock = threading.Lock()

    def __init__(self, asked: _Asked) -> None:
        self._asked = asked

    def __enter__(self) -> None:
        self._lock.acquire()
        delattr(_METACLASS, _NAME)

    def __exit__(self, *error: object) -> None:
        setattr(_METACLASS, _NAME, self._asked)
        self._lock.release()


def _looked_up(cls: type) -> Any:
    """``cls.setup_context`` without the property."""
    for base in cls.__mro__:
        if _NAME in base.__dict__:
            value = base.__dict__[_NAME]
            return value.__get__(None, cls) if hasattr(type(value), "__get__") else value
    return _BASE


class NativeApply:
    """``apply`` of every Function, replaced from :meth:`install` until :meth:`undo`."""

    def __init__(
        self,
        hook: Callable[[type, tuple[Any, ...], dict[str, Any]], Any],
        wants: Callable[[type], bool],
    ) -> None:
        """Call ``hook(cls, args, kwargs)`` for each class that is wanted when it's applied."""
        self._hook, self._wants = hook, wants
        names: Any = torch_functions
        self._bind_swap = CodeSwap(names._bind_default_args, self._bind, "_funcaot_bind")
        self._call_swap = CodeSwap(names._call_custom_function_call, self._call, "_funcaot_call")
        self._asked = _Asked(wants)

    def install(self) -> None:
        """Replace it; nothing where that is done."""
        self._bind_swap.install()
        self._call_swap.install()
        self._original_bind = self._bind_swap.original
        self._original_call = self._call_swap.original
        setattr(_METACLASS, _NAME, self._asked)

    def _bind(self, forward: Any, args: tuple[Any, ...], kwargs: dict[str, Any] | None) -> Any:
        if not _calling.wanted:
            return self._original_bind(forward, args, kwargs)
        _calling.wanted = False
        if not transforms_active():
            functorch._grad_increment_nesting()
            _calling.pushed = True
        return args, kwargs or {}

    def _call(self, cls: type, args: tuple[Any, ...], kwargs: dict[str, Any] | None) -> Any:
        pushed = _calling.pushed
        self.settle()
        if not pushed and not self._wants(cls):
            return self._original_call(cls, args, kwargs)
        return self._hook(cls, args, kwargs or {})

    def settle(self) -> None:
        """Pop the level of a call that an interrupt ended between its two steps."""
        _calling.wanted = False
        if _calling.pushed:
            _calling.pushed = False
            functorch._grad_decrement_nesting()

    def undo(self) -> None:
        """Restore torch exactly."""
        if _NAME in _METACLASS.__dict__:
            delattr(_METACLASS, _NAME)
        self._bind_swap.undo()
        self._call_swap.undo()
