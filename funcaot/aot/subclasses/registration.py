"""``register_wrapper``: how tensors of a class are taken apart that doesn't say so itself."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch

from funcaot._torch.tensors.classes import wrapping
from funcaot.errors import FuncaotError

__all__ = ["register_wrapper"]


def register_wrapper(
    kind: type,
    flatten: Callable[[Any], tuple[Sequence[str], Any]],
    unflatten: Callable[[dict[str, Any], Any, Any, Any], Any],
) -> None:
    """Say how tensors of a class that wrap others are taken apart and made again.

    For a class of another library that has a ``__torch_dispatch__`` and no
    ``__tensor_flatten__``: calls with its tensors can be compiled from now on. Torch's masked
    tensors are known. In a class of your own, write the two methods.

    Args:
        kind: The class itself. Classes that inherit from it are registered by themselves.
        flatten: ``flatten(tensor)`` returns the names of the attributes that hold the inner
            tensors, and metadata: everything else that ``unflatten`` needs, which is compared in
            each call.
        unflatten: ``unflatten(inner, metadata, size, stride)`` returns a tensor of the class around
            the very tensors of ``inner``, a dictionary by name, and not around copies.

    Raises:
        FuncaotError: If ``kind`` isn't a subclass of tensors, has the two methods, or was
            registered with other functions.

    Example:
        >>> import torch, funcaot
        >>> class Boxed(torch.Tensor):
        ...     @staticmethod
        ...     def __new__(cls, held):
        ...         return torch.Tensor._make_wrapper_subclass(cls, held.shape, dtype=held.dtype)
        ...     def __init__(self, held):
        ...         self.held = held
        ...     @classmethod
        ...     def __torch_dispatch__(cls, func, types, args=(), kwargs=None):
        ...         return cls(func(*(a.held if isinstance(a, cls) else a for a in args)))
        >>> funcaot.register_wrapper(
        ...     Boxed, lambda x: (["held"], None), lambda inner, *_: Boxed(inner["held"])
        ... )
        >>> double = funcaot.compile(lambda x: x * 2, backend="eager", fullgraph=True)
        >>> double(Boxed(torch.ones(2))).held
        tensor([2., 2.])
    """
    _check_class(kind)
    if not (callable(flatten) and callable(unflatten)):
        raise FuncaotError(
            f"register_wrapper was given no functions for {kind.__name__}.",
            expected="two functions: flatten(tensor) and unflatten(inner, metadata, size, stride)",
            got=repr((flatten, unflatten)),
            remedy="pass what __tensor_flatten__ and __tensor_unflatten__ of the class would be.",
        )
    known = wrapping.row_of(kind)
    if known is not None and known != (flatten, unflatten):
        raise FuncaotError(
            f"register_wrapper was told before how a {kind.__name__} is taken apart, by other "
            "functions.",
            remedy="register a class once, where it is imported; programs may have been made.",
        )
    wrapping.add_row(kind, flatten, unflatten)


def _check_class(kind: Any) -> None:
    plain = (torch.Tensor, torch.nn.Parameter, torch.nn.Buffer)
    if not (isinstance(kind, type) and issubclass(kind, torch.Tensor)) or kind in plain:
        raise FuncaotError(
            "register_wrapper wasn't given a class of tensors that wrap others.",
            expected="a subclass of torch.Tensor with a __torch_dispatch__",
            got=repr(kind),
            remedy="pass the class, not one of its tensors.",
        )
    if wrapping.has_methods(kind):
        raise FuncaotError(
            f"{kind.__name__} has a __tensor_flatten__ and a __tensor_unflatten__, its own or "
            "inherited, which torch asks, too.",
            remedy="define these two methods in the class instead of registering it.",
        )
