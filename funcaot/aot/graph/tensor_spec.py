"""What a tensor looks like from the outside: the part of a signature that belongs to one tensor."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, TypeAlias

import torch

from funcaot._torch.levels.functorch import is_leaf_at_every_level, requires_grad_at_any_level
from funcaot._torch.tensors.sizes.shapes import expression_of
from funcaot._torch.tracing.tracing import FakeTensor, FunctionalTensor
from funcaot.aot.subclasses.metadata import Outer
from funcaot.aot.subclasses.structure import Structure, is_wrapper, structure_of

_TRACED = (FakeTensor, FunctionalTensor)
LayoutKey: TypeAlias = tuple[Any, ...]

# Elements whose places are looked at one by one.
_COUNTED = 100_000


@dataclass(frozen=True, slots=True)
class TensorSpec:
    """Metadata of one tensor; two tensors with equal specs run the same program.

    Attributes:
        shape: Sizes, as seen at the level where the call happens; an expression for a size that
            a program leaves open.
        stride: Strides, like sizes; empty for layouts that have none.
        dtype: Element type.
        device: Where the data lives.
        layout: ``torch.strided`` or a sparse layout.
        requires_grad: Whether some level or base autograd differentiates it.
        is_leaf: Whether it is a leaf of base autograd.
        flags: Conj and neg bits, and the sparse dimensions and number of entries.
        structure: What it consists of, if it wraps other tensors.
    """

    shape: tuple[int, ...]
    stride: tuple[int, ...]
    dtype: torch.dtype
    device: torch.device
    layout: torch.layout
    requires_grad: bool
    is_leaf: bool
    flags: tuple[int | bool, ...] = (False, False)
    structure: Structure | None = None

    def __str__(self) -> str:
        """One line, ``float32[3, 4]`` style; strides only where they aren't contiguous."""
        text = f"{str(self.dtype).removeprefix('torch.')}{list(self.shape)}"
        if self.structure is not None:
            text = f"{self.structure.kind.__name__} {text}"
        if self.layout is not torch.strided:
            text += f" {str(self.layout).removeprefix('torch.')}"
        elif self.stride != contiguous_stride(self.shape):
            text += f" stride {list(self.stride)}"
        if self.device.type != "cpu":
            text += f" {self.device}"
        return text + (" requires_grad" if self.requires_grad else "")

    def without_grad(self) -> TensorSpec:
        """The same tensor as a leaf that nothing differentiates."""
        return replace(self, requires_grad=False, is_leaf=True)

    def with_grad(self) -> TensorSpec:
        """The same tensor as a leaf that is differentiated."""
        return replace(self, requires_grad=True, is_leaf=True)

    @property
    def nbytes(self) -> int:
        """Bytes of the elements, counting each element once."""
        count = 1
        for size in self.shape:
            count *= size
        return count * self.dtype.itemsize


def contiguous_stride(shape: tuple[int, ...]) -> tuple[int, ...]:
    """Strides of a contiguous tensor of this shape."""
    stride: list[int] = []
    step = 1
    for size in reversed(shape):
        stride.append(step)
        step *= max(size, 1) if isinstance(size, int) else size
    return tuple(reversed(stride))


def may_overlap(shape: Sequence[int], stride: Sequence[int]) -> bool:
    """Whether two elements may lie in one place."""
    if 0 in shape:
        return False
    reach = 0
    for step, size in sorted(zip(stride, shape, strict=True)):
        if size > 1:
            if step <= reach:
                return True
            reach += (size - 1) * step
    return False


def overlap(shape: Sequence[int], stride: Sequence[int]) -> bool:
    """Whether two elements lie in one place; of very many, whether they may."""
    if not may_overlap(shape, stride) or math.prod(shape) > _COUNTED:
        return may_overlap(shape, stride)
    places = [0]
    for size, step in zip(shape, stride, strict=True):
        places = [place + number * step for place in places for number in range(size)]
    return len(set(places)) < len(places)


def is_dense(shape: tuple[int, ...], stride: tuple[int, ...]) -> bool:
    """Whether the elements fill a block of memory, each once, in some order.

    With open sizes, only if it is the usual order.
    """
    if not all(isinstance(number, int) for number in (*shape, *stride)):
        return stride == contiguous_stride(shape)
    step = 1
    for length, size in sorted(
        (length, size) for length, size in zip(stride, shape, strict=True) if size != 1
    ):
        if length != step:
            return False
        step *= size
    return True


def spec_of(tensor: torch.Tensor, *, forward_mode: bool = False) -> TensorSpec:
    """Read a tensor's spec.

    Args:
        tensor: The tensor, at whatever level.
        forward_mode: Whether tangents may be carried forward through it: then any tensor that
            can be differentiated counts as one that is.
    """
    if is_wrapper(tensor):
        return _spec_of_wrapper(tensor)
    moving = forward_mode and (tensor.dtype.is_floating_point or tensor.dtype.is_complex)
    strided = tensor.layout is torch.strided
    flags: tuple[int | bool, ...] = (tensor.is_conj(), tensor.is_neg())
    if not strided:
        flags += _sparse_flags(tensor)
    shape, stride = tuple(tensor.shape), tensor.stride() if strided else ()
    if isinstance(tensor, _TRACED):
        shape, stride = tuple(map(expression_of, shape)), tuple(map(expression_of, stride))
    return TensorSpec(
        shape=shape,
        stride=tuple(stride),
        dtype=tensor.dtype,
        device=tensor.device,
        layout=tensor.layout,
        requires_grad=moving or requires_grad_at_any_level(tensor),
        is_leaf=is_leaf_at_every_level(tensor) and not moving,
        flags=flags,
    )


def _spec_of_wrapper(tensor: torch.Tensor) -> TensorSpec:
    """The spec of a tensor that wraps others."""
    outer = Outer.of(tensor.shape, tensor.stride())
    return TensorSpec(
        shape=outer.shape,
        stride=outer.stride,
        dtype=tensor.dtype,
        device=tensor.device,
        layout=tensor.layout,
        requires_grad=requires_grad_at_any_level(tensor),
        is_leaf=is_leaf_at_every_level(tensor),
        structure=structure_of(tensor, spec_of, outer),
    )


def layout_key(tensor: torch.Tensor) -> LayoutKey:
    """What a spec says of a tensor except for how it's differentiated, as a key made in a hurry."""
    if tensor.layout is not torch.strided or is_wrapper(tensor):
        return (spec_of(tensor).without_grad(),)
    return (
        tensor.shape,
        tensor.stride(),
        tensor.dtype,
        tensor.device,
        tensor.is_conj(),
        tensor.is_neg(),
    )


def _sparse_flags(tensor: torch.Tensor) -> tuple[int | bool, ...]:
    if tensor.layout is torch.sparse_coo:
        return (tensor._nnz(), tensor.sparse_dim(), tensor.dense_dim(), tensor.is_coalesced())
    return (tensor._nnz(), tensor.dense_dim())
