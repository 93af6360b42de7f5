"""In which way a result differs from eager's."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.utils import _pytree as pytree

NAN, ZERO, INFINITY, INDEX = "NaN", "sign of zero", "infinity", "index"
DENORMAL, VALUE, METADATA, RAISES = "denormal", "value", "metadata", "raises"

# Relative, beyond which an ordinary number is another one; rounding isn't what this is about.
_TOLERANCE = {
    torch.float64: 1e-6,
    torch.float32: 1e-3,
    torch.float16: 2e-2,
    torch.bfloat16: 6e-2,
}


def differences(found: Any, expected: Any) -> dict[str, int]:
    """How many elements differ, by the way in which they do."""
    total: dict[str, int] = {}
    mine, theirs = pytree.tree_leaves(found), pytree.tree_leaves(expected)
    if len(mine) != len(theirs):
        return {METADATA: 1}
    for one, other in zip(mine, theirs, strict=True):
        for kind, count in _of_tensors(one, other).items():
            total[kind] = total.get(kind, 0) + count
    return total


def _of_tensors(found: Tensor | None, expected: Tensor | None) -> dict[str, int]:
    if found is None or expected is None:
        return {} if found is expected else {METADATA: 1}
    if found.dtype != expected.dtype or found.shape != expected.shape:
        return {METADATA: 1}
    if found.is_complex():
        found, expected = torch.view_as_real(found), torch.view_as_real(expected)
    if not found.is_floating_point():
        count = int((found != expected).sum())
        return {INDEX: count} if count else {}
    return {kind: int(mask.sum()) for kind, mask in _masks(found, expected) if mask.any()}


def _masks(found: Tensor, expected: Tensor) -> list[tuple[str, Tensor]]:
    nan = found.isnan() ^ expected.isnan()
    numbers = ~found.isnan() & ~expected.isnan()
    zeros = numbers & (found == 0) & (expected == 0) & (found.signbit() ^ expected.signbit())
    apart = numbers & (found != expected)
    infinite = apart & (found.isinf() | expected.isinf())
    tiny = torch.finfo(found.dtype).smallest_normal
    denormal = apart & (found.abs() <= tiny) & (expected.abs() <= tiny)
    tolerance = _TOLERANCE[found.dtype]
    rest = apart & ~infinite & ~denormal
    scale = torch.maximum(found.abs(), expected.abs()).double()
    far = rest & ((found.double() - expected.double()).abs() > tolerance * scale)
    # What cancels to nearly nothing is rounding.
    far &= scale > tolerance * 1e-3
    return [(NAN, nan), (ZERO, zeros), (INFINITY, infinite), (DENORMAL, denormal), (VALUE, far)]
