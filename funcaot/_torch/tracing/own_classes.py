"""Tensors of users' classes on a tape: the tape's tensor gets the methods of such a class.

A class of tensors says by its methods, its attributes and ``__torch_function__`` what is done with
them. The tape's tensor that stands for one is made one of a class of both: code of the user's finds
the methods of its class on it, and torch's tracing its own. ``as_subclass`` and ``_make_subclass``,
which no mode of torch sees, are replaced while something is captured, as is what switches modes
off.
"""

from __future__ import annotations

import contextlib
import functools
import sys
import threading
from collections.abc import Callable, Iterable, Iterator
from typing import Any

import torch
from torch._subclasses.functional_tensor import FunctionalTensor

from funcaot._torch.patches import require
from funcaot._torch.tensors.classes.own_functions import (
    functions_of_classes_off,
    has_own_functions,
    names_in_place,
)
from funcaot._torch.tensors.guards import users_function_mode_active
from funcaot.base.scopes import SharedPatch, holding

__all__ = [
    "can_enter",
    "class_of",
    "class_that_acts",
    "in_class",
    "making_classes",
    "put_in_class",
    "traced_classes",
]

_OWN = "_funcaot_of"
# Modules that record what runs, and see a tensor of the tape as torch's.
_RECORDING = (
    *("funcaot.", "torch._subclasses.", "torch.fx.", "torch._ops", "torch._prims", "torch._refs"),
    *("torch._decomp", "torch._higher_order_ops", "torch._library", "torch._functorch."),
    *("torch._inductor", "torch._dynamo", "torch.utils._python_dispatch", "torch._meta_reg"),
)
# What decides how any attribute is found, or which object it is.
_REFUSED = frozenset(
    {
        *("__getattribute__", "__getattr__", "__setattr__", "__delattr__", "__dict__"),
        *("__class__", "__hash__", "__del__", "__instancecheck__"),
    }
)


class _Quiet:
    """A first base, so that a user's class isn't told of classes that are made of it here."""

    __slots__ = ()

    def __init_subclass__(cls, **keywords: Any) -> None:
        """Do nothing."""


def _is_recording() -> bool:
    """Whether code that records asks for an attribute."""
    name = str(sys._getframe(2).f_globals.get("__name__"))
    return name.startswith(_RECORDING)


class _InPlace:
    """A method or property that a class has in place of a tensor's: the user's code finds it."""

    def __init__(self, name: str) -> None:
        self._name = name
        self._own: Any = None

    def _found(self, tensor: Any, kind: Any) -> Any:
        if tensor is None:
            return getattr(super(kind, kind), self._name)
        return getattr(super(self._own, tensor), self._name)

    def __get__(self, tensor: Any, kind: Any = None) -> Any:
        if tensor is not None and _is_recording():
            return getattr(super(_last_before(self._own), tensor), self._name)
        return self._found(tensor, kind)


class _InPlaceOfProperty(_InPlace):
    """The same for one that may be assigned to."""

    def __set__(self, tensor: Any, value: Any) -> None:
        start = _last_before(self._own) if _is_recording() else self._own
        after = type(tensor).__mro__[type(tensor).__mro__.index(start) + 1 :]
        raw = next(vars(base)[self._name] for base in after if self._name in vars(base))
        raw.__set__(tensor, value)


def _last_before(kind: type) -> type:
    """The last class of the user's in the order of lookup."""
    return kind.__mro__[kind.__mro__.index(FunctionalTensor) - 1]


@functools.lru_cache(maxsize=256)
def _made_of(kind: type, in_place: frozenset[str]) -> type:
    """A class whose tensors have the attributes of a user's class, and are traced."""
    space: dict[str, Any] = {
        "__torch_function__": torch._C._disabled_torch_function_impl,
        "__module__": kind.__module__,
        "__qualname__": kind.__qualname__,
        "__doc__": kind.__doc__,
        _OWN: kind,
    }
    for name in in_place:
        raw = next(vars(base)[name] for base in kind.__mro__ if name in vars(base))
        found: type[_InPlace] = _InPlaceOfProperty if hasattr(type(raw), "__set__") else _InPlace
        space[name] = found(name)
    made = type(kind)(kind.__name__, (_Quiet, kind, FunctionalTensor), space)
    for name in in_place:
        vars(made)[name]._own = made
    return made


@functools.lru_cache(maxsize=256)
def _at_level_of(kind: type) -> type:
    """The same for tensors at a level of a transform, which wrap the tape's."""
    space: dict[str, Any] = {
        "__torch_function__": torch._C._disabled_torch_function_impl,
        "__module__": kind.__module__,
        "__qualname__": kind.__qualname__,
        "__class__": property(lambda tensor: kind),
        _OWN: kind,
    }
    return type(kind)(kind.__name__, (_Quiet, kind), space)


def _traced(kind: type) -> type | None:
    """The class of the tape's tensors that stand for those of a class; None if there can't be."""
    if not _REFUSED.isdisjoint(name for base in _users(kind) for name in vars(base)):
        return None
    try:
        return _made_of(kind, names_in_place(kind))
    except TypeError:  # Bases whose orders of lookup, or whose metaclasses, don't go together.
        return None


def _users(kind: type) -> Iterator[type]:
    for base in kind.__mro__:
        if base in (torch.Tensor, torch.nn.Parameter, torch.nn.Buffer):
            return
        yield base


def can_enter(kind: type) -> bool:
    """Whether tensors of a class can be traced as such."""
    made = _traced(kind)
    return (
        made is not None
        and made.__dictoffset__ == FunctionalTensor.__dictoffset__
        and (made.__basicsize__ == FunctionalTensor.__basicsize__)
    )


def put_in_class(tensor: torch.Tensor, kind: type) -> None:
    """Make a tape's tensor, or one at a level, one of a user's class, or a plain one."""
    if not isinstance(tensor, FunctionalTensor):
        made = kind if kind is torch.Tensor else _at_level_of(kind)
    else:
        made = FunctionalTensor if kind is torch.Tensor else _traced(kind)
    if made is None:
        raise TypeError(f"tensors of class {kind.__name__} can't be traced")
    _CLASS.__set__(tensor, made)


_CLASS: Any = vars(object)["__class__"]


def class_of(tensor: Any) -> type:
    """The user's class of a tensor, of a tape or real."""
    kind = type(tensor)
    return getattr(kind, _OWN, kind)


def class_that_acts(tensor: Any) -> type | None:
    """The user's class of a tensor if it says what is done with it; else None."""
    kind = class_of(tensor)
    return kind if issubclass(kind, torch.Tensor) and has_own_functions(kind) else None


def traced_classes(kinds: Iterable[type]) -> tuple[type, ...]:
    """Classes as torch's tracing knows them: that of all tensors of a tape is one."""
    return tuple(FunctionalTensor if hasattr(kind, _OWN) else kind for kind in kinds)


def in_class(tensor: torch.Tensor, kind: type, *, leaf: bool | None) -> torch.Tensor:
    """A real tensor of a class, in the memory of another one.

    Args:
        tensor: The other one.
        kind: The class.
        leaf: Whether a leaf requires grad; None for a view.
    """
    if leaf is None:
        return tensor.as_subclass(kind)  # type: ignore[arg-type]
    return _make_subclass(kind, tensor, leaf)  # type: ignore[no-any-return]


Make = Callable[[torch.Tensor, type, "bool | None"], Any]


class _ThisThread(threading.local):
    make: Make | None = None


_this_thread = _ThisThread()
_as_subclass: Any = torch._C.TensorBase.as_subclass  # type: ignore[attr-defined]
_make_subclass: Any = torch._C.TensorBase._make_subclass  # type: ignore[attr-defined]


def _seen_as_subclass(self: torch.Tensor, cls: type) -> Any:
    """``Tensor.as_subclass`` while something is captured."""
    make = _this_thread.make
    made = NotImplemented if make is None else make(self, cls, None)
    return _as_subclass(self, cls) if made is NotImplemented else made


def _seen_make_subclass(
    cls: type, data: torch.Tensor, require_grad: bool = False, **options: Any
) -> Any:
    """``Tensor._make_subclass`` while something is captured."""
    make = _this_thread.make
    made = NotImplemented if make is None or options else make(data, cls, require_grad)
    return _make_subclass(cls, data, require_grad, **options) if made is NotImplemented else made


_disable = torch._C.DisableTorchFunction


def _seen_disable() -> Any:
    """``DisableTorchFunction`` in code of a class: it means classes, and a capture looks on."""
    asker = str(sys._getframe(1).f_globals.get("__name__")).partition(".")[0]
    if _this_thread.make is None or asker in ("torch", "funcaot") or users_function_mode_active():
        return _disable()
    return functions_of_classes_off()


_seen_as_subclass.__name__ = "as_subclass"
_seen_make_subclass.__name__ = "_make_subclass"


def _install() -> None:
    torch.Tensor.as_subclass = _seen_as_subclass  # type: ignore[assignment, method-assign]
    torch.Tensor._make_subclass = staticmethod(_seen_make_subclass)  # type: ignore
    torch._C.DisableTorchFunction = _seen_disable  # type: ignore


def _undo() -> None:
    for name in ("as_subclass", "_make_subclass"):
        if name in vars(torch.Tensor):
            delattr(torch.Tensor, name)
    torch._C.DisableTorchFunction = _disable  # type: ignore


_patch = SharedPatch(_install, _undo)


@contextlib.contextmanager
def making_classes(make: Make) -> Iterator[None]:
    """While active in this thread, ``make`` is asked for a tensor of a class made of another one.

    Args:
        make: Takes the tensor, the class and whether the result requires grad, which is None for a
            view. It returns ``NotImplemented`` for what torch is to do itself.
    """
    require("own classes")
    with _patch.used(), holding(_this_thread, make=make):
        yield
