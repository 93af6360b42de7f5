"""Random numbers in eager's order: an in-place draw fills memory in the order of its strides."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from funcaot._torch.tensors.pytree import tree_map
from funcaot.aot.graph.tensor_spec import is_dense

__all__ = ["in_memory_order"]

aten = torch.ops.aten

# Their results are contiguous in eager, but the symbolic ones lie as the tensors that they take.
_CONTIGUOUS = (
    aten.normal.Tensor_Tensor,
    aten.normal.Tensor_float,
    aten.normal.float_Tensor,
    aten.poisson.default,
    aten.rrelu_with_noise_functional.default,
    aten._standard_gamma.default,
)


def in_memory_order(running: Callable[[], Any]) -> dict[Any, Callable[..., Any]]:
    """What a tape records of draws that torch's functional forms make in another order.

    Args:
        running: Returns the op that was called, of which torch may have made a functional form.
    """

    def bernoulli(tensor: torch.Tensor, p: float = 0.5, *, generator: Any = None) -> Any:
        draw = _in_place if running() is aten.bernoulli_.float else _into_new_memory
        return draw(tensor, p, generator)

    def normal(tensor: torch.Tensor, *args: Any, **kwargs: Any) -> Any:
        in_place = running() is aten.normal_.default
        return _normal(tensor, *args, **kwargs) if in_place else NotImplemented

    return {
        aten.bernoulli.p: bernoulli,
        aten.normal_functional.default: normal,
        aten.uniform.default: _uniform,
        **{op: _of_contiguous(op) for op in _CONTIGUOUS},
    }


def _in_place(tensor: torch.Tensor, p: float, generator: Any) -> Any:
    """Torch would draw for a contiguous tensor instead."""
    order = sorted(range(tensor.dim()), key=lambda dim: -tensor.stride(dim))
    if tensor.dim() < 2 or order == list(range(tensor.dim())):
        return NotImplemented
    drawn = aten.bernoulli.p(tensor.permute(order), p, generator=generator)
    return drawn.permute([order.index(dim) for dim in range(tensor.dim())])


def _into_new_memory(tensor: torch.Tensor, p: float, generator: Any) -> Any:
    """Eager's result is contiguous, whatever the tensor is that it looks like."""
    if tensor.is_contiguous():
        return NotImplemented
    copied = aten._to_copy.default(tensor, memory_format=torch.contiguous_format)
    return aten.bernoulli.p(copied, p, generator=generator)


def _of_contiguous(op: Callable[..., Any]) -> Callable[..., Any]:
    """Without dimensions to order: compilers take a copy of another order for no change."""

    def drawn(*args: Any, **kwargs: Any) -> Any:
        tensors = [arg for arg in args if isinstance(arg, torch.Tensor)]
        if all(tensor.is_contiguous() for tensor in tensors):
            return NotImplemented
        together = iter(torch.broadcast_tensors(*tensors))
        flat = [next(together).reshape(-1) if isinstance(a, torch.Tensor) else a for a in args]
        shape = torch.broadcast_shapes(*(tensor.shape for tensor in tensors))
        return tree_map(lambda x: x.reshape(shape), op(*flat, **kwargs))

    return drawn


def _uniform(tensor: torch.Tensor, *args: Any, **kwargs: Any) -> Any:
    """The symbolic result keeps the gaps of a view; torch's has none."""
    if is_dense(tuple(tensor.shape), tensor.stride()):
        return NotImplemented
    return aten.uniform.default(aten.clone.default(tensor), *args, **kwargs)


def _normal(tensor: torch.Tensor, *args: Any, **kwargs: Any) -> Any:
    """Torch fills contiguous memory by another method, and the functional form has no gaps."""
    if is_dense(tuple(tensor.shape), tensor.stride()):
        return NotImplemented
    made = aten.clone.default(tensor)
    long = [dim for dim in range(made.dim()) if made.shape[dim] != 1]
    if not made.is_contiguous() or not long:
        return NotImplemented
    if len(long) > 1:
        order = list(reversed(range(made.dim())))
        drawn = aten.normal_functional.default(made.permute(order), *args, **kwargs)
        return drawn.permute(order)
    size = made.shape[long[0]]
    rows = next((n for n in range(2, size) if size % n == 0), 0) if isinstance(size, int) else 0
    if not rows:
        return NotImplemented
    drawn = aten.normal_functional.default(made.reshape(rows, -1).t(), *args, **kwargs)
    return drawn.t().reshape(tensor.shape)
