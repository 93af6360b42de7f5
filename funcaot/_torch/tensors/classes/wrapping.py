"""How tensors that wrap others are taken apart and made again.

A class says it by ``__tensor_flatten__`` and ``__tensor_unflatten__``. For one that has no such
methods there is a table, with a row for torch's masked tensors, and with those that users add.
All that takes wrappers apart asks here.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import Any, TypeAlias

import torch
from torch.masked import MaskedTensor
from torch.utils._python_dispatch import is_traceable_wrapper_subclass_type

from funcaot.errors import UnsupportedError

__all__ = [
    "Flatten",
    "Unflatten",
    "add_row",
    "flattened",
    "has_methods",
    "is_wrapper_class",
    "is_wrapper_subclass",
    "names_of_functions",
    "row_of",
    "unflattened",
]

Flatten: TypeAlias = Callable[[Any], tuple[Sequence[str], Any]]
Unflatten: TypeAlias = Callable[[dict[str, Any], Any, Any, Any], Any]


def _masked_flattened(tensor: Any) -> tuple[Sequence[str], Any]:
    return ("_masked_data", "_masked_mask"), None


def _masked_unflattened(inner: dict[str, Any], context: Any, size: Any, stride: Any) -> Any:
    """A masked tensor that holds what it is given; its constructor would hold copies, and warn."""
    data = inner["_masked_data"]
    made = torch.Tensor._make_wrapper_subclass(  # type: ignore[attr-defined]
        MaskedTensor,
        size,
        dtype=data.dtype,
        device=data.device,
        layout=data.layout,
        dispatch_sizes_strides_policy="strides",
        dispatch_layout=True,
    )
    made._masked_data, made._masked_mask = data, inner["_masked_mask"]
    return made


_rows: dict[type, tuple[Flatten, Unflatten]] = {
    MaskedTensor: (_masked_flattened, _masked_unflattened)
}


@functools.lru_cache(maxsize=1024)
def is_wrapper_class(kind: type) -> bool:
    """Whether tensors of a class wrap others and can be taken apart."""
    return kind in _rows or is_traceable_wrapper_subclass_type(kind)


def is_wrapper_subclass(value: Any) -> bool:
    """Whether it is a tensor that wraps others and can be taken apart."""
    return isinstance(value, torch.Tensor) and is_wrapper_class(type(value))


def flattened(wrapper: Any) -> tuple[Sequence[str], Any]:
    """The attributes of a wrapper that hold its inner tensors, and its metadata."""
    row = _rows.get(type(wrapper))
    return wrapper.__tensor_flatten__() if row is None else row[0](wrapper)


def unflattened(kind: Any, inner: dict[str, Any], context: Any, size: Any, stride: Any) -> Any:
    """A wrapper of a class around inner tensors.

    Args:
        kind: The class.
        inner: The tensors, by attribute.
        context: The metadata.
        size: The wrapper's own sizes.
        stride: Its strides.

    Raises:
        UnsupportedError: If a function of the table put something else in.
    """
    row = _rows.get(kind)
    if row is None:
        return kind.__tensor_unflatten__(inner, context, size, stride)
    made = row[1](inner, context, size, stride)
    for name, value in inner.items():
        if getattr(made, name, None) is not value:
            raise UnsupportedError(
                f"The unflatten that register_wrapper was given for {kind.__name__} makes a tensor "
                f"whose {name} isn't the one that it was given.",
                remedy="set the attributes to what is in inner, also where the class's own "
                "constructor copies.",
            )
    return made


def row_of(kind: type) -> tuple[Flatten, Unflatten] | None:
    """The functions that the table has for a class."""
    return _rows.get(kind)


def has_methods(kind: type) -> bool:
    """Whether a class says itself how its tensors are taken apart."""
    return is_traceable_wrapper_subclass_type(kind)


def names_of_functions(kind: type) -> tuple[str, str]:
    """What takes tensors of a class apart and makes them again, for messages."""
    if kind in _rows:
        named = f"that register_wrapper was given for {kind.__name__}"
        return f"the flatten {named}", f"the unflatten {named}"
    return f"{kind.__name__}.__tensor_flatten__", f"{kind.__name__}.__tensor_unflatten__"


def add_row(kind: type, flatten: Flatten, unflatten: Unflatten) -> None:
    """Say how tensors of a class are taken apart that has no methods for it.

    Args:
        kind: The class itself; those made of it need rows of their own.
        flatten: In place of ``__tensor_flatten__``.
        unflatten: In place of ``__tensor_unflatten__``.
    """
    _rows[kind] = flatten, unflatten
    is_wrapper_class.cache_clear()
