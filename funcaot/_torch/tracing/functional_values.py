"""The value inside of a functional tensor: replaced, and with the strides that eager gives it.

``x.masked_fill_(...)`` leaves a transposed ``x`` transposed; ``masked_fill`` makes a contiguous
tensor of it. The wrapper of a functional tensor goes on to tell the strides of ``x``, while
everything computed from it would get those of the value inside.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import torch
from torch._subclasses.functional_tensor import FunctionalTensor
from torch.fx.experimental.proxy_tensor import get_proxy_mode, get_proxy_slot
from torch.utils._mode_utils import no_dispatch
from torch.utils._python_dispatch import _disable_current_modes
from torch.utils._pytree import tree_map_only

from funcaot._torch.tensors.ops import written_arguments
from funcaot._torch.tensors.sizes.shapes import expression_of
from funcaot._torch.tensors.storages import users_beside

aten = torch.ops.aten

_NOT_TRUE = "Expected Tensor with single nonzero value, but got zero"


def keep_strides(func: Any, args: Sequence[Any], kwargs: Mapping[str, Any]) -> None:
    """Give what an op has just written to the strides that it has on the outside.

    Args:
        func: The op, run by functionalization.
        args: Its arguments.
        kwargs: Its keywords.
    """
    if not func._schema.is_mutable:
        return
    for tensor in _written(func, args, kwargs):
        torch._sync(tensor)
        inner = torch._from_functional_tensor(tensor.elem)
        order = _order_to_restore(tensor, inner)
        if order is None:
            _restride_ones(tensor, inner)
            continue
        dense = aten.clone.default(
            aten.permute.default(inner, order), memory_format=torch.contiguous_format
        )
        back = [order.index(dim) for dim in range(len(order))]
        replace_value(tensor, aten.permute.default(dense, back))


def replace_value(tensor: torch.Tensor, inner: torch.Tensor) -> None:
    """Give a functional wrapper another value, with its views."""
    elem = tensor.elem  # type: ignore[attr-defined]
    torch._functionalize_replace(elem, inner)  # type: ignore[attr-defined]
    torch._functionalize_commit_update(elem)  # type: ignore[attr-defined]
    torch._functionalize_sync(elem)  # type: ignore[attr-defined]


def run_below(mode: Any, func: Any, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
    """Run an op that writes to nothing on the values inside, and wrap what comes out.

    A check without a text gets eager's: compilers drop it as an op whose result nobody uses.
    """
    if func is aten._assert_async.default:
        func, args = aten._assert_async.msg, (*args, _NOT_TRUE)
    given, named = tree_map_only(FunctionalTensor, _value, (args, kwargs))
    wrapped = lambda made: FunctionalTensor(torch._to_functional_tensor(made), mode)  # noqa: E731
    return tree_map_only(torch.Tensor, wrapped, func(*given, **named))


def _value(tensor: Any) -> torch.Tensor:
    torch._sync(tensor)
    return torch._from_functional_tensor(tensor.elem)


@contextlib.contextmanager
def outside_only() -> Iterator[None]:
    """An op inside changes the metadata of a functional tensor's outside, and nothing else."""
    with no_dispatch():
        before = torch._C._meta_in_tls_dispatch_include()
        torch._C._set_meta_in_tls_dispatch_include(True)
        try:
            yield
        finally:
            torch._C._set_meta_in_tls_dispatch_include(before)


def shares_memory(tensor: torch.Tensor) -> bool:
    """Whether another tensor that lives has the memory of a tensor: a view, a detached one."""
    if tensor._is_view():
        return True
    return users_beside([tensor.elem]) if isinstance(tensor, FunctionalTensor) else False


def make_growable(tensor: torch.Tensor) -> None:
    """Let a functional wrapper that has memory alone be resized to more elements, as a write.

    To torch 2.15 such a wrapper and what it wraps look like two views of one storage, which it
    refuses to resize. A new wrapper of the same value doesn't look so.
    """
    if isinstance(tensor, FunctionalTensor):
        torch._sync(tensor)
        value = torch._from_functional_tensor(tensor.elem)
        tensor.elem = torch._to_functional_tensor(value)
        replace_value(tensor, value)


def _written(
    func: Any, args: Sequence[Any], kwargs: Mapping[str, Any]
) -> Iterator[FunctionalTensor]:
    for value in written_arguments(func, args, kwargs):
        if isinstance(value, FunctionalTensor) and value.layout is torch.strided:
            yield value


def _order_to_restore(outside: torch.Tensor, inside: torch.Tensor) -> list[int] | None:
    """The order of dimensions in memory, if it has to be restored.

    None if the strides are the same, or if the tensor isn't dense: what is written to a part of
    another tensor has the strides of a part.
    """
    shape, stride = _numbers(outside.shape), _numbers(outside.stride())
    found = _numbers(inside.stride())
    if found == stride or _numbers(inside.shape) != shape or 0 in shape:
        return None
    order = sorted(range(len(shape)), key=lambda dim: -_length(outside, dim))
    restored = list(stride)
    step: Any = 1
    for dim in reversed(order):
        restored[dim] = step
        step = step * shape[dim]
    if restored == stride:
        return order
    # Of dimensions of one element, strides are free; if only they differ, nothing is moved.
    wide = [dim for dim, size in enumerate(shape) if size != 1]
    dense = all(restored[dim] == stride[dim] for dim in wide)
    return order if dense and any(found[dim] != stride[dim] for dim in wide) else None


def _restride_ones(outside: torch.Tensor, inside: torch.Tensor) -> None:
    """Give a traced value the strides of the outside, if only dimensions of size 1 differ.

    No node says it: what a graph makes gets the strides that the graph's values have.
    """
    shape, stride, found = tuple(outside.shape), tuple(outside.stride()), inside.stride()
    if not all(isinstance(number, int) for number in (*shape, *stride, *inside.shape)):
        return
    proxies = get_proxy_mode()
    if found == stride or tuple(inside.shape) != shape or proxies is None:
        return
    if any(found[dim] != stride[dim] for dim, size in enumerate(shape) if size != 1):
        return
    traced = get_proxy_slot(inside, proxies.tracer, None)
    if traced is None:
        return
    with _disable_current_modes():
        for value in (inside, traced.proxy.node.meta["val"]):
            value.as_strided_(shape, stride)


def _numbers(values: Sequence[Any]) -> list[Any]:
    """Sizes as numbers, open ones as expressions, so that comparing them asks nothing."""
    return [expression_of(value) for value in values]


def _length(tensor: torch.Tensor, dim: int) -> int:
    """A stride, of the call that is traced where it is open."""
    stride: Any = tensor.stride(dim)
    if not isinstance(stride, torch.SymInt):
        return int(stride)
    return int(stride.node.shape_env.at_present(stride.node.expr))


def is_up_to_date(tensor: torch.Tensor) -> bool:
    """Whether the value inside a functional wrapper is what it shows: nothing was written since."""
    if not isinstance(tensor, FunctionalTensor):
        return True
    inside = torch._from_functional_tensor(tensor.elem)
    torch._sync(tensor)
    return torch._from_functional_tensor(tensor.elem) is inside
