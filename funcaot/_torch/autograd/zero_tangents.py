"""Zeros that stand for missing tangents are computed with where sizes are open.

In forward mode torch has a tensor of zeros without memory wherever an operand carries no tangent.
It adds and multiplies such zeros in kernels of their own, which take sizes as numbers; for other
ops it makes them zeros in memory, likewise. A trace with open sizes would assume those of its call.
Here the kernels are the same, with the sizes as they are.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from typing import Any, TypeAlias

import torch
from torch.autograd import forward_ad

from funcaot._torch.autograd.op_kernels import (
    KernelLibrary,
    OpOverload,
    devices,
    torch_kernel,
)
from funcaot._torch.patches import applied
from funcaot.base.scopes import SharedPatch

__all__ = ["laid_as", "with_open_zeros"]

_KEY = "ZeroTensor"
_ZEROS = torch._C.DispatchKeySet(torch._C.DispatchKey.ZeroTensor)
Kernel: TypeAlias = Callable[..., torch.Tensor]
Operand: TypeAlias = torch.Tensor | complex


def _shape(left: Operand, right: Operand) -> list[Any]:
    """The broadcast shape; an open size is never 1."""
    shapes = [list(each.shape) for each in (left, right) if isinstance(each, torch.Tensor)]
    rank = max(map(len, shapes))
    padded = [[1] * (rank - len(shape)) + shape for shape in shapes]
    return [
        next((size for size in sizes if not _is_one(size)), 1)
        for sizes in zip(*padded, strict=True)
    ]


def _is_one(size: Any) -> bool:
    return type(size) is int and size == 1


def _is_open(value: Operand) -> bool:
    return isinstance(value, torch.Tensor) and any(type(size) is not int for size in value.shape)


def _is_zero(value: Operand) -> bool:
    return isinstance(value, torch.Tensor) and value._is_zerotensor()


def _dtype(left: Operand, right: Operand) -> torch.dtype:
    """Of the result; torch would make the zeros first."""
    with torch._C._ExcludeDispatchKeyGuard(_ZEROS):
        return torch.result_type(left, right)


def _zeros(left: Operand, right: Operand) -> torch.Tensor:
    return _zeros_of(_dtype(left, right), left, right)


def _zeros_of(dtype: torch.dtype, left: Operand, right: Operand) -> torch.Tensor:
    device = (left if isinstance(left, torch.Tensor) else right).device  # type: ignore[union-attr]
    return torch._efficientzerotensor(_shape(left, right), dtype=dtype, device=device)


def _as_result(found: Operand, left: Operand, right: Operand) -> torch.Tensor:
    """The operand that isn't zero as the sum's result: a new tensor."""
    shape, dtype = _shape(left, right), _dtype(left, right)
    if not isinstance(found, torch.Tensor):
        return torch.full(shape, found, dtype=dtype)
    return torch.ops.aten._to_copy(found.expand(shape), dtype=dtype)


def _add(left: Operand, right: Operand, *, alpha: Any = 1) -> torch.Tensor:
    if not _is_zero(left):
        return _as_result(left, left, right)
    if _is_zero(right):
        return _zeros(left, right)
    found = _as_result(right, left, right)
    return found if alpha == 1 else found.mul(alpha)


def _sub(left: Operand, right: Operand, *, alpha: Any = 1) -> torch.Tensor:
    return _add(left, right, alpha=-alpha)


def _div(left: Operand, right: Operand) -> torch.Tensor:
    if _is_zero(right):
        return torch.div(_materialized(left), _materialized(right))
    dtype = _dtype(left, right)
    is_exact = dtype.is_floating_point or dtype.is_complex
    return _zeros_of(dtype if is_exact else torch.get_default_dtype(), left, right)


_aten = torch.ops.aten
_EXACT: dict[OpOverload, Kernel] = {
    _aten.add.Tensor: _add,
    _aten.sub.Tensor: _sub,
    _aten.mul.Tensor: _zeros,
    _aten.div.Tensor: _div,
}


# Ops in formulas of tangents that compute with zeros as with any other tensor: those that torch's
# samples of all ops lead to.
_MATERIALIZING: tuple[OpOverload, ...] = (
    _aten._fft_c2c.default,
    _aten._fft_c2r.default,
    _aten._fft_r2c.default,
    _aten._has_same_storage_numel.default,
    _aten._to_copy.default,
    _aten._trilinear.default,
    _aten._unsafe_index_put.default,
    _aten._unsafe_masked_index_put_accumulate.default,
    _aten.adaptive_max_pool2d_backward.default,
    _aten.adaptive_max_pool3d_backward.default,
    _aten.addmm.default,
    _aten.as_strided_scatter.default,
    _aten.baddbmm.default,
    _aten.binary_cross_entropy_backward.default,
    _aten.block_diag.default,
    _aten.bmm.default,
    _aten.cat.default,
    _aten.complex.default,
    _aten.convolution.default,
    _aten.cumsum.default,
    _aten.diagonal_scatter.default,
    _aten.div.Scalar,
    _aten.dot.default,
    _aten.elu_backward.default,
    _aten.fractional_max_pool2d_backward.default,
    _aten.gather.default,
    _aten.gelu_backward.default,
    _aten.glu_backward.default,
    _aten.glu_backward_jvp.default,
    _aten.hardswish_backward.default,
    _aten.huber_loss_backward.default,
    _aten.index.Tensor,
    _aten.index_add.default,
    _aten.index_copy.default,
    _aten.index_fill.int_Tensor,
    _aten.index_put.default,
    _aten.index_select.default,
    _aten.is_same_size.default,
    _aten.lerp.Scalar,
    _aten.lerp.Tensor,
    _aten.linalg_lu_solve.default,
    _aten.log_sigmoid_backward.default,
    _aten.masked_fill.Scalar,
    _aten.masked_fill.Tensor,
    _aten.masked_scatter.default,
    _aten.max_pool2d_with_indices_backward.default,
    _aten.max_pool3d_with_indices_backward.default,
    _aten.mean.dim,
    _aten.mm.default,
    _aten.mse_loss_backward.default,
    _aten.mv.default,
    _aten.neg.default,
    _aten.put.default,
    _aten.scatter.src,
    _aten.scatter_add.default,
    _aten.scatter_reduce.two,
    _aten.select_backward.default,
    _aten.select_scatter.default,
    _aten.sigmoid_backward.default,
    _aten.slice_backward.default,
    _aten.smooth_l1_loss_backward.default,
    _aten.softplus_backward.default,
    _aten.special_xlog1py.default,
    _aten.stack.default,
    _aten.sum.default,
    _aten.sum.dim_IntList,
    _aten.tanh_backward.default,
    _aten.threshold_backward.default,
    _aten.tril.default,
    _aten.triu.default,
    _aten.where.self,
    _aten.xlogy.Tensor,
)


def _laid_out(
    keyset: Any, tangent: torch.Tensor, primal: torch.Tensor, *, self_num_batch_dims: int = 0
) -> torch.Tensor:
    """Zeros for a tangent, in memory as that of the primal; torch asks for a number where it is."""
    return laid_as(primal, tangent.new_empty, tangent.shape[:self_num_batch_dims])


def laid_as(
    primal: torch.Tensor, make: Callable[[list[Any]], torch.Tensor], batch: Sequence[Any]
) -> torch.Tensor:
    """A batch of what lies as the primal does, in memory that is made for it."""
    shape, stride = list(primal.shape), list(primal.stride())
    pairs = zip(shape, stride, strict=True)
    size = 1 + sum((length - 1) * step for length, step in pairs)
    steps = [size * math.prod(batch[at + 1 :]) for at in range(len(batch))]
    return make([*batch, size]).as_strided([*batch, *shape], [*steps, *stride])


def _materializing(op: OpOverload) -> Kernel:
    """What torch does with zeros for any other op, with the sizes as they are."""

    def kernel(keyset: Any, *arguments: Any, **keywords: Any) -> torch.Tensor:
        return op(*map(_materialized, arguments), **keywords)

    return kernel


def _materialized(value: Any) -> Any:
    if isinstance(value, list | tuple):
        return type(value)(map(_materialized, value))
    if isinstance(value, torch.Tensor) and value._is_zerotensor():
        return torch.zeros((), dtype=value.dtype, device=value.device).expand(value.shape)
    return value


def _kernel(ours: Kernel, original: Kernel) -> Kernel:
    def kernel(keyset: Any, left: Any, right: Any, **keywords: Any) -> torch.Tensor:
        numbers = not (isinstance(left, torch.Tensor) and isinstance(right, torch.Tensor))
        if numbers or _is_open(left) or _is_open(right):
            return ours(left, right, **keywords)
        return original(keyset, left, right, **keywords)

    return kernel


# Ops of many tensors whose formula makes the tangents that some of them lack.
_JOINING: tuple[OpOverload, ...] = (_aten.cat.default, _aten.stack.default)


def _joining(original: Kernel) -> Kernel:
    """The kernel of autograd, where each tensor has a tangent if one does."""

    def kernel(keyset: Any, tensors: Any, *arguments: Any, **keywords: Any) -> torch.Tensor:
        if forward_ad._current_level >= 0 and any(map(_is_open, tensors)):
            moving = [_may_move(each) and _tangent_of(each) is not None for each in tensors]
            if any(moving):
                tensors = [
                    each if moves or not _may_move(each) else _still(each)
                    for each, moves in zip(tensors, moving, strict=True)
                ]
        return original(keyset, tensors, *arguments, **keywords)

    return kernel


def _may_move(tensor: torch.Tensor) -> bool:
    return tensor.is_floating_point() or tensor.is_complex()


def _tangent_of(tensor: torch.Tensor) -> torch.Tensor | None:
    return forward_ad.unpack_dual(tensor).tangent


def _still(tensor: torch.Tensor) -> torch.Tensor:
    return forward_ad.make_dual(tensor, torch.zeros_like(tensor))


_library = KernelLibrary()


def _install() -> None:
    if _library.is_installed:
        return
    kernels = {op: {_KEY: _materializing(op)} for op in _MATERIALIZING}
    for op in _JOINING:
        for device in devices():
            original = torch_kernel(op, f"Autograd{device}")
            if original is not None:
                kernels[op][f"Autograd{device}"] = _joining(original)
    kernels[_aten._new_zeros_with_same_feature_meta.default] = {"Meta": _laid_out}
    for op, ours in _EXACT.items():
        original = torch_kernel(op, _KEY)
        if original is not None:
            kernels[op] = {_KEY: _kernel(ours, original)}
    _library.install(kernels)


_patch = SharedPatch(_install, _library.remove)


def with_open_zeros() -> AbstractContextManager[None]:
    """Zeros for missing tangents leave sizes open inside, if the patch isn't switched off."""
    return applied("zero tangents", _patch.used, None)
