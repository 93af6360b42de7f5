"""Products of groups of rows (``torch.nn.functional.grouped_mm``), as eager's kernel takes them.

``REWRITTEN`` asks here. Mixtures of experts multiply the rows of each expert by its own weights.
Eager does so in float32 and float16, too, and pads the rows of what it returns to 16 bytes. Torch's
symbolic version takes nothing but bfloat16, and on a build without CUDA it pads nothing.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch.library import Library, register_fake

__all__ = ["GROUPED", "by_own_op"]

GROUPED = torch.ops.aten._grouped_mm.default
_DTYPES = (torch.float32, torch.bfloat16, torch.float16)
_ALIGNMENT = 16

_library = Library("funcaot", "FRAGMENT")
_library.define(
    "grouped_mm(Tensor self, Tensor mat2, Tensor? offs=None, Tensor? bias=None, "
    "ScalarType? out_dtype=None) -> Tensor"
)


def _differentiable(*args: Any) -> torch.Tensor:
    """The op above autograd, which knows the derivative of torch's."""
    operands = [each for each in args if isinstance(each, torch.Tensor)]
    if torch.is_grad_enabled() and any(each.requires_grad for each in operands):
        return GROUPED(*args)
    with torch._C._AutoDispatchBelowAutograd():
        return torch.ops.funcaot.grouped_mm(*args)


_library.impl("grouped_mm", lambda *args: GROUPED(*args), "CompositeExplicitAutograd")
_library.impl("grouped_mm", _differentiable, "Autograd")


def by_own_op(func: Any, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
    """The product of groups, recorded as an op whose symbolic version is below.

    Args:
        func: ``GROUPED``.
        args: Its arguments, below autograd.
        kwargs: Its keywords.

    Returns:
        The product, or ``NotImplemented`` where torch's own version says the same as the kernel.
    """
    left = args[0]
    if left.device.type == "cuda" and left.dtype == torch.bfloat16:  # Inductor has a kernel.
        return NotImplemented
    return torch.ops.funcaot.grouped_mm(*args, **kwargs)


def _made(
    left: torch.Tensor,
    right: torch.Tensor,
    offs: torch.Tensor | None = None,
    bias: torch.Tensor | None = None,
    out_dtype: torch.dtype | None = None,
) -> torch.Tensor:
    """An empty result, laid out as the kernel's.

    Raises:
        RuntimeError: For what the kernel refuses.
    """
    flat = left.dim() == 2, right.dim() == 2
    torch._check(left.dim() in (2, 3) and right.dim() in (2, 3), lambda: "expected 2D or 3D")
    for each in (left, right):
        torch._check(each.dtype in _DTYPES, lambda: "expected Float32, BFloat16 or Float16")
        _check_strides(each)
    torch._check(left.dtype == right.dtype, lambda: "grouped_mm takes one dtype")
    torch._check(out_dtype in (None, left.dtype), lambda: "out_dtype must be the inputs'")
    torch._check(bias is None, lambda: "Bias not supported yet")
    torch._check((offs is not None) == any(flat), lambda: "offsets are for groups of 2D operands")
    if not all(flat):
        torch._check(left.size(-1) == right.size(-2), lambda: "contracted sizes must match")
    groups = [offs.size(0)] if offs is not None else []
    groups += [each.size(0) for each in (left, right) if each.dim() == 3]
    for count in groups[1:]:
        torch._check(count == groups[0], lambda: "numbers of groups must match")
    shape = [left.size(-2), right.size(-1)]
    width = _ALIGNMENT // left.element_size()
    padded = (shape[-1] + width - 1) // width * width
    strides = [padded, 1]
    if flat[0] == flat[1]:
        strides = [shape[0] * padded, *strides]
        shape = [groups[0], *shape]
    return left.new_empty_strided(shape, strides)


def _check_strides(matrix: torch.Tensor) -> None:
    """Refuse rows and columns that don't begin at multiples of 16 bytes."""
    rows, columns = matrix.stride()[-2:]
    height, width = matrix.shape[-2:]
    if rows == 1 and columns >= max(1, height):
        step = columns
    else:
        torch._check(columns == 1 and rows >= max(1, width), lambda: "Invalid strides/sizes")
        step = rows
    aligned = step % (_ALIGNMENT // matrix.element_size()) == 0
    torch._check(aligned, lambda: "strides should be multiple of 16 bytes")


register_fake("funcaot::grouped_mm", _made, lib=_library)
