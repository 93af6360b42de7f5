"""Classes of tensors that say themselves what is done with them; asked where inputs are entered."""

from __future__ import annotations

import functools

import torch
from torch._subclasses import FakeTensor
from torch._subclasses.functional_tensor import FunctionalTensor
from torch.utils._python_dispatch import is_traceable_wrapper_subclass_type

__all__ = ["has_own_dispatch", "has_own_functions"]

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


@functools.lru_cache(maxsize=1024)
def has_own_functions(kind: type) -> bool:
    """Whether a class of tensors does with them what isn't done with plain ones.

    By a ``__torch_function__``, be it the one of ``torch.Tensor``, which makes each result one of
    the class; by a ``__torch_dispatch__``; or by a method, property or attribute in place of a
    tensor's. Traced tensors stand for those of a call, and have none of that.
    """
    if kind in _PLAIN or issubclass(kind, (*_TRACED, _LAZY)):
        return False
    if is_traceable_wrapper_subclass_type(kind):
        return False
    if has_own_dispatch(kind) or kind.__torch_function__ is not _NO_FUNCTION:  # type: ignore
        return True
    return any(
        name not in _HARMLESS and hasattr(torch.Tensor, name)
        for base in kind.__mro__[: _first_plain(kind)]
        for name in vars(base)
    )


@functools.lru_cache(maxsize=1024)
def has_own_dispatch(kind: type) -> bool:
    """Whether a class of tensors has a ``__torch_dispatch__``, and isn't taken apart or traced."""
    if issubclass(kind, _TRACED) or is_traceable_wrapper_subclass_type(kind):
        return False
    dispatch = kind.__torch_dispatch__  # type: ignore[attr-defined]
    return getattr(dispatch, "__func__", dispatch) is not _NO_DISPATCH


def _first_plain(kind: type) -> int:
    """Where in the order of a class's bases those begin that tensors have."""
    return next(index for index, base in enumerate(kind.__mro__) if base in _PLAIN)
