"""Decompositions in the place of Inductor's, where its own compute or allow something else."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch.utils._pytree import tree_map

from funcaot import config
from funcaot._torch.autograd.zero_tangents import laid_as
from funcaot._torch.inductor import special_values

__all__ = ["corrected"]

aten = torch.ops.aten

Table = Mapping[Any, Callable[..., Any]]

_BYTES = (torch.uint8, torch.int8)
_NARROW = (*_BYTES, torch.int16)
_SUMMED_AS_INT64 = (*_NARROW, torch.int32)


def corrected(table: Table) -> dict[Any, Callable[..., Any]]:
    """A table of decompositions with those replaced that aren't what eager computes."""
    found = special_values.corrected(table)
    found[aten.abs.default] = _abs
    found[aten._efficientzerotensor.default] = _zeros
    found[aten._new_zeros_with_same_feature_meta.default] = _zeros_laid_out
    for op in (aten.max_pool2d_with_indices.default, aten.max_pool3d_with_indices.default):
        found[op] = _in_usual_layouts(found.get(op))
    found[aten.avg_pool2d_backward.default] = _with_two_sizes
    found[aten.cumsum.default] = _cast_before
    found[aten.take.default] = _taken_by_index
    found[aten.upsample_nearest2d_backward.default] = _nearest_by_scale
    found[aten.var_mean.correction] = _of_nothing(found.get(aten.var_mean.correction))
    found[aten.add.Tensor] = _scaled_apart(torch.add)
    found[aten.sub.Tensor] = _scaled_apart(torch.sub)
    found[aten.mm.default] = _outer(found.get(aten.mm.default))
    found[aten.bmm.default] = _narrow_bmm(found.get(aten.bmm.default))
    found[aten.bernoulli.default] = _drawn_by_eager(found.get(aten.bernoulli.default))
    for op in (aten.div.Tensor_mode, aten.div.Scalar_mode):
        found[op] = _truncated(found.get(op))
    rrelu = aten.rrelu_with_noise_functional.default
    if rrelu in found:
        found[rrelu] = _with_its_noise(found[rrelu])
    for op in (aten.argmax.default, aten.argmin.default):
        found[op] = _first_in_order(op)
    if aten.celu.default in found:
        found[aten.celu.default] = _checked_celu(found[aten.celu.default])
    for ops, wrap in (
        (_EXTREMES, _of_wide_integers),
        (_SUMS, _summed_widely),
        (_QUESTIONS, _asked_as_booleans),
    ):
        found.update({op: wrap(op, found.get(op)) for op in ops})
    return found


def _zeros(size: Sequence[Any], **settings: Any) -> torch.Tensor:
    """Zeros in memory: torch's stand-in for them has none, and a kernel would read at address 0."""
    kept = {name: settings.get(name) for name in ("dtype", "device")}
    return torch.zeros(size, **kept)


def _zeros_laid_out(
    tangent: torch.Tensor, primal: torch.Tensor, *, self_num_batch_dims: int = 0
) -> torch.Tensor:
    """Zeros that lie as the primal does: torch asks for the number of an open size for them."""
    return laid_as(primal, tangent.new_zeros, tangent.shape[:self_num_batch_dims])


def _abs(x: torch.Tensor) -> Any:
    """Narrow integers stay narrow: C++ takes ``abs`` of them as an int, and goes on with that."""
    if x.dtype not in _NARROW:
        return NotImplemented
    return x.clone() if x.dtype is torch.uint8 else torch.where(x < 0, -x, x)


def _taken_by_index(x: torch.Tensor, index: torch.Tensor) -> torch.Tensor:
    """Torch's own asks for the value of an index without dimensions."""
    return aten.index.Tensor(x.reshape(-1), [index])


def _scaled_apart(op: Callable[..., Any]) -> Callable[..., Any]:
    """Inductor's patterns overlook ``alpha``: of ``a @ b + alpha * y`` they make ``addmm``."""

    def scaled(x: Any, y: Any, *, alpha: Any = 1) -> Any:
        if (type(alpha) is int and alpha == 1) or not isinstance(y, torch.Tensor):
            return NotImplemented
        dtype = torch.result_type(x, y)
        return NotImplemented if dtype is torch.bool else op(x, y.to(dtype) * alpha)

    return scaled


def _of_nothing(decomposed: Callable[..., Any] | None) -> Callable[..., Any]:
    """The mean of no elements is NaN; Inductor's is 0 if it computes a variance beside it."""

    def var_mean(x: torch.Tensor, dim: Any = None, **settings: Any) -> Any:
        reduced = x.shape if not dim else [x.shape[d] for d in dim]
        if any(isinstance(size, int) and size == 0 for size in reduced):
            keepdim = settings.get("keepdim", False)
            nothing = x.sum([*dim] if dim else list(range(x.dim())), keepdim=keepdim)
            mean = torch.full_like(nothing, torch.nan)
            real = mean.real if mean.is_complex() else mean
            return real.clone(), mean
        return NotImplemented if decomposed is None else decomposed(x, dim, **settings)

    return var_mean


def _nearest_by_scale(
    grad: torch.Tensor,
    output_size: Sequence[int],
    input_size: Sequence[int],
    scales_h: float | None = None,
    scales_w: float | None = None,
) -> Any:
    """Inductor's sums over pixels by the ratio of the sizes, whatever scale the caller gave."""
    if scales_h is None and scales_w is None:
        return NotImplemented
    for dim, scale in ((2, scales_h), (3, scales_w)):
        size, pixels = input_size[dim], torch.arange(grad.shape[dim], device=grad.device)
        step = size / grad.shape[dim] if not scale else 1 / scale
        source = (pixels.to(torch.float32) * step).to(torch.int64).clamp(max=size - 1)
        shape = [*grad.shape]
        shape[dim] = size
        grad = grad.new_zeros(shape).index_add(dim, source, grad)
    return grad


def _in_usual_layouts(decomposed: Callable[..., Any] | None) -> Callable[..., Any]:
    """Of pixels that lie in another order, Inductor's code stores some indices elsewhere."""

    def pool(x: torch.Tensor, *args: Any, **kwargs: Any) -> Any:
        last = {4: torch.channels_last, 5: torch.channels_last_3d}.get(x.dim())
        usual = x.is_contiguous() or (last is not None and x.is_contiguous(memory_format=last))
        if decomposed is None or not usual:
            return NotImplemented
        return decomposed(x, *args, **kwargs)

    return pool


def _with_two_sizes(
    grad: torch.Tensor,
    x: torch.Tensor,
    kernel: Sequence[int],
    stride: Sequence[int],
    padding: Sequence[int],
    *rest: Any,
) -> Any:
    """Inductor fails for sizes that eager takes for both dimensions."""
    given = (kernel, stride, padding)
    if all(len(sizes) != 1 for sizes in given):
        return NotImplemented
    both = [[*sizes] * 2 if len(sizes) == 1 else sizes for sizes in given]
    return aten.avg_pool2d_backward.default(grad, x, *both, *rest)


def _cast_before(x: torch.Tensor, dim: int, *, dtype: torch.dtype | None = None) -> Any:
    """Inductor's pattern for the cumulative sum of a constant overlooks ``dtype``, and numbers."""
    if x.dim() == 0:
        whole = not (x.is_floating_point() or x.is_complex())
        return x.clone().to(dtype or (torch.int64 if whole else x.dtype))
    return NotImplemented if dtype in (None, x.dtype) else x.to(dtype).cumsum(dim)


def _outer(decomposed: Callable[..., Any] | None) -> Callable[..., Any]:
    """Of a column and a row, a product without a sum, which kernels around it compute along.

    The gradient of a linear layer with one output is such a product. Inductor's own asks a library
    for it, unless both have few elements.
    """

    def product(x: torch.Tensor, y: torch.Tensor, *rest: Any, **settings: Any) -> Any:
        inner = x.shape[-1]
        plain = x.dtype in (torch.float32, torch.float64) and x.dtype == y.dtype
        if plain and isinstance(inner, int) and inner == 1 and not rest and not settings:
            return x * y
        return NotImplemented if decomposed is None else decomposed(x, y, *rest, **settings)

    return product


def _narrow_bmm(decomposed: Callable[..., Any] | None) -> Callable[..., Any]:
    """Inductor computes products with a vector as sums, and sums of integers are int64."""

    def bmm(x: torch.Tensor, y: torch.Tensor, *rest: Any, **settings: Any) -> Any:
        with_vector = any(isinstance(n, int) and n == 1 for n in (x.shape[1], y.shape[2]))
        if x.dtype in _SUMMED_AS_INT64 and with_vector and not rest and not settings:
            return (x.unsqueeze(-1) * y.unsqueeze(1)).sum(2, dtype=x.dtype)
        return NotImplemented if decomposed is None else decomposed(x, y, *rest, **settings)

    return bmm


def _truncated(decomposed: Callable[..., Any] | None) -> Callable[..., Any]:
    """A whole number that is divided by zero ends the process in Inductor's code for ``trunc``.

    Its code for ``floor`` raises eager's error.
    """

    def divide(x: torch.Tensor, y: Any, *, rounding_mode: str | None = None) -> Any:
        dtype = torch.result_type(x, y)
        if rounding_mode != "trunc" or dtype.is_floating_point or dtype is torch.bool:
            if decomposed is None:
                return NotImplemented
            return decomposed(x, y, rounding_mode=rounding_mode)
        floor = torch.div(x, y, rounding_mode="floor")
        return torch.where((floor < 0) & (floor * y != x), floor + 1, floor)

    return divide


def _first_in_order(op: Any) -> Callable[..., Any]:
    """Of equal elements eager finds the first; Inductor the one that lies first in memory."""

    def position(x: torch.Tensor, dim: int | None = None, keepdim: bool = False) -> Any:
        if dim is not None or x.dim() < 2:
            return NotImplemented
        found = op(x.reshape(-1), 0)
        return found.reshape([1] * x.dim()) if keepdim else found

    return position


_EXTREMES = (
    aten.amax.default,
    aten.amin.default,
    aten.aminmax.default,
    aten.max.default,
    aten.min.default,
    aten.max.dim,
    aten.min.dim,
    aten.argmax.default,
    aten.argmin.default,
)
_SUMS = (aten.sum.default, aten.sum.dim_IntList, aten.prod.default, aten.prod.dim_int)
_QUESTIONS = (aten.any.default, aten.any.dim, aten.any.dims)


def _of_wide_integers(op: Any, decomposed: Callable[..., Any] | None) -> Callable[..., Any]:
    """Inductor loads as many bytes as a vector has floats, and reduces all bytes of the vector.

    What lies in the others is whatever was there: the largest of 37 zeros was 1. The place of the
    first False was always 0.
    """

    def reduce(x: torch.Tensor, *args: Any, **settings: Any) -> Any:
        if x.dtype not in (*_BYTES, torch.bool):
            return NotImplemented if decomposed is None else decomposed(x, *args, **settings)
        found = op(x.to(torch.int32), *args, **settings)
        return tree_map(lambda y: y.to(x.dtype) if y.dtype is torch.int32 else y, found)

    return reduce


def _summed_widely(op: Any, decomposed: Callable[..., Any] | None) -> Callable[..., Any]:
    """The same of sums that are asked for in bytes; of some in booleans there is no code."""

    def reduce(x: torch.Tensor, *args: Any, **settings: Any) -> Any:
        dtype = settings.get("dtype")
        if dtype not in (*_BYTES, torch.bool):
            return NotImplemented if decomposed is None else decomposed(x, *args, **settings)
        return op(x.to(dtype), *args, **{**settings, "dtype": torch.int64}).to(dtype)

    return reduce


def _asked_as_booleans(op: Any, decomposed: Callable[..., Any] | None) -> Callable[..., Any]:
    """Eager's answer about unsigned bytes is one of them; Inductor's is a boolean."""

    def asked(x: torch.Tensor, *args: Any, **settings: Any) -> Any:
        if x.dtype is not torch.uint8:
            return NotImplemented if decomposed is None else decomposed(x, *args, **settings)
        return op(x.to(torch.bool), *args, **settings).to(torch.uint8)

    return asked


def _with_its_noise(decomposed: Callable[..., Any]) -> Callable[..., Any]:
    """In evaluation mode Inductor's returns a tensor without elements in the place of the noise.

    It draws a number for every element, and eager only where there is none above zero: where a
    generator is given, it is eager's kernel.
    """

    def rrelu(x: torch.Tensor, noise: torch.Tensor, *args: Any, **kwargs: Any) -> Any:
        if isinstance(kwargs.get("generator", args[-1] if args else None), torch.Generator):
            return NotImplemented
        output, drawn = decomposed(x, noise, *args, **kwargs)
        return output, drawn if drawn.shape == noise.shape else noise.clone()

    return rrelu


def _drawn_by_eager(decomposed: Callable[..., Any] | None) -> Callable[..., Any]:
    """Torch's own draws in float32, whatever the probabilities are, where eager's may differ."""

    def bernoulli(p: torch.Tensor, *, generator: torch.Generator | None = None) -> Any:
        if decomposed is None or generator is not None or config.get().fallback_random:
            return NotImplemented
        return decomposed(p)

    return bernoulli


def _checked_celu(decomposed: Callable[..., Any]) -> Callable[..., Any]:
    def celu(x: torch.Tensor, alpha: float = 1.0) -> Any:
        if alpha == 0:
            raise RuntimeError("ZeroDivisionError: alpha cannot be 0 for CELU")
        return decomposed(x, alpha)

    return celu
