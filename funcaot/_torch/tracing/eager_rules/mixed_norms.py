"""Normalizations of half precision by weights of float32; ``TapeFunctionalMode`` asks here.

Autocast leads to them: a linear layer gives bfloat16, and the weights of the norm behind it are
float32. Eager's kernels for CPUs compute in float32 then and keep statistics of float32. Symbolic
versions say that the statistics have the input's dtype, which backwards refuse. So the input is
cast, the op runs on float32 alone, and the result is cast back.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch

__all__ = ["NORMS", "in_single_precision"]

aten = torch.ops.aten

# How many of the first arguments have the dtype of the input; so has the first result.
_FORWARDS = dict.fromkeys(
    (
        aten.native_layer_norm.default,
        aten.native_group_norm.default,
        aten.native_batch_norm.default,
        aten._native_batch_norm_legit.default,
        aten._native_batch_norm_legit.no_stats,
        aten._native_batch_norm_legit_no_training.default,
        aten._batch_norm_with_update.default,
        aten._batch_norm_no_update.default,
    ),
    1,
)
_BACKWARDS = dict.fromkeys(
    (
        aten.native_layer_norm_backward.default,
        aten.native_group_norm_backward.default,
        aten.native_batch_norm_backward.default,
        aten.batch_norm_backward.default,
    ),
    2,
)
NORMS = {**_FORWARDS, **_BACKWARDS}
_NARROW = (torch.bfloat16, torch.float16)


def in_single_precision(func: Any, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
    """What such an op returns, computed in float32.

    Args:
        func: One of ``NORMS``, below autograd.
        args: Its arguments.
        kwargs: Its keywords.

    Returns:
        Its results, or ``NotImplemented`` if eager's kernel doesn't compute in float32.
    """
    count = NORMS[func]
    image = args[count - 1] if len(args) >= count else None
    if not isinstance(image, torch.Tensor) or image.device.type != "cpu":
        return NotImplemented
    others = [value for value in args[count:] if isinstance(value, torch.Tensor)]
    if image.dtype not in _NARROW or all(value.dtype != torch.float32 for value in others):
        return NotImplemented
    wide = [aten._to_copy.default(value, dtype=torch.float32) for value in args[:count]]
    first, *more = func(*wide, *args[count:], **kwargs)
    if first is not None:
        first = aten._to_copy.default(first, dtype=image.dtype)
    return first, *more
