"""Classes of tensors that say themselves what is done with them; asked where inputs are entered."""

from __future__ import annotations

import contextlib
import functools
import threading
from collections.abc import Iterator
from typing import Any

import torch
from torch._subclasses import FakeTensor
from torch._subclasses.functional_tensor import FunctionalTensor

from funcaot._torch.tensors.classes.wrapping import is_wrapper_class

__all__ = [
    "as_called",
    "called_with_functions_of_classes",
    "function_in_use",
    "functions_of_classes_off",
    "functions_of_classes_on",
    "has_own_dispatch",
    "has_own_functions",
    "is_own_class",
    "names_in_place",
    "own_function_of",
    "without_functions_of_classes",
]


functions_of_classes_off = torch._C.DisableTorchFunctionSubclass
functions_of_classes_on = torch._C._is_torch_function_enabled

_NO_FUNCTION = torch._C._disabled_torch_function_impl
_NO_DISPATCH = torch._C._disabled_torch_dispatch_impl  # type: ignore[attr-defined]
_PLAIN = (torch.Tensor, torch.nn.Parameter, torch.nn.Buffer)
_TRACED = (FakeTensor, FunctionalTensor)
_LAZY = torch.nn.parameter.UninitializedTensorMixin  # type: ignore[attr-defined]
# What a class may have of its own without anything being computed otherwise.
_HARMLESS = frozenset(
    {
        *("__module__", "__qualname__", "__doc__", "__dict__", "__weakref__", "__slots__"),
        *("__annotations__", "__annotate__", "__annotate_func__", "__annotations_cache__"),
        *("__firstlineno__", "__static_attributes__", "__parameters__", "__orig_bases__"),
        *("__abstractmethods__", "__init_subclass__", "__class_getitem__", "__new__", "__init__"),
        *("__repr__", "__str__", "__format__", "__dir__", "__copy__", "__deepcopy__"),
        *("__reduce__", "__reduce_ex__", "__setstate__", "__getstate__"),
        *("__torch_function__", "__torch_dispatch__"),
    }
)


def has_own_functions(kind: type) -> bool:
    """Whether a class of tensors does with them what isn't done with plain ones.

    By a ``__torch_function__``, be it the one of ``torch.Tensor``, which makes each result one of
    the class; by a ``__torch_dispatch__``; or by a method, property or attribute in place of a
    tensor's. Traced tensors stand for those of a call, and have none of that.
    """
    if not is_own_class(kind):
        return False
    if has_own_dispatch(kind) or kind.__torch_function__ is not _NO_FUNCTION:  # type: ignore
        return True
    return bool(names_in_place(kind))


def is_own_class(kind: type) -> bool:
    """Whether a class of tensors is a user's that is neither taken apart nor traced."""
    if kind in _PLAIN or issubclass(kind, (*_TRACED, _LAZY)):
        return False
    return not is_wrapper_class(kind)


def names_in_place(kind: type) -> frozenset[str]:
    """The methods, properties and attributes that a class has in place of a tensor's."""
    return frozenset(
        name
        for base in kind.__mro__[: _first_plain(kind)]
        for name in vars(base)
        if name not in _HARMLESS and hasattr(torch.Tensor, name)
    )


def has_own_dispatch(kind: type) -> bool:
    """Whether a class of tensors has a ``__torch_dispatch__``, and isn't taken apart or traced."""
    return not is_wrapper_class(kind) and _dispatches(kind)


@functools.lru_cache(maxsize=1024)
def _dispatches(kind: type) -> bool:
    if issubclass(kind, _TRACED):
        return False
    dispatch = kind.__torch_dispatch__  # type: ignore[attr-defined]
    return getattr(dispatch, "__func__", dispatch) is not _NO_DISPATCH


def _first_plain(kind: type) -> int:
    """Where in the order of a class's bases those begin that tensors have."""
    return next(index for index, base in enumerate(kind.__mro__) if base in _PLAIN)


def own_function_of(kind: Any) -> Any:
    """What a class says functions of torch do with its objects; None if it says nothing."""
    found = getattr(kind, "__torch_function__", None)
    return None if found is _NO_FUNCTION else found


def function_in_use(kind: type) -> Any:
    """The function that a class has as its ``__torch_function__``, its own or inherited."""
    found = kind.__torch_function__  # type: ignore[attr-defined]
    return getattr(found, "__func__", found)


class _ThisThread(threading.local):
    """Whether a call came with the functions of classes on, where they are off for us."""

    called_with: bool = False


_this_thread = _ThisThread()


@contextlib.contextmanager
def without_functions_of_classes() -> Iterator[None]:
    """Read tensors of users' classes as what they are in C++, without asking their classes."""
    before = _this_thread.called_with
    _this_thread.called_with = functions_of_classes_on()
    try:
        with functions_of_classes_off():
            yield
    finally:
        _this_thread.called_with = before


@contextlib.contextmanager
def as_called() -> Iterator[None]:
    """Where the user's code runs in between: its classes say what ops do if they did outside."""
    if not _this_thread.called_with or functions_of_classes_on():
        yield
        return
    with torch._C._EnableTorchFunction():
        yield


def called_with_functions_of_classes() -> bool:
    """Whether the classes of tensors say what ops do, here or where we were called."""
    return functions_of_classes_on() or _this_thread.called_with
