"""Kernels of eager that read some operand as if it lay as in eager: Inductor must leave it so.

Given indices in another layout, the gradients of these pools go to other elements, or beyond the
memory. Attention's fused kernels read heads as if the elements of each lay end to end. Found by
calling every kernel of torch's database on operands of other strides.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any

import torch

__all__ = ["RIGID_KERNELS", "TAG", "operands_as_captured"]

aten = torch.ops.aten

_ATTENTION = (
    "_scaled_dot_product_flash_attention_for_cpu",
    "_scaled_dot_product_flash_attention",
    "_scaled_dot_product_efficient_attention",
    "_scaled_dot_product_cudnn_attention",
)

RIGID_KERNELS = frozenset(
    {
        *(getattr(aten, name).default for name in _ATTENTION),
        *(getattr(aten, f"{name}_backward").default for name in _ATTENTION),
        aten.max_pool3d_with_indices_backward.default,
        aten.adaptive_max_pool3d_backward.default,
        aten.fractional_max_pool2d_backward.default,
        aten.fractional_max_pool3d_backward.default,
        aten.native_group_norm_backward.default,
        aten._embedding_bag_backward.default,
        aten._embedding_bag_per_sample_weights_backward.default,
    }
)
# Part of the key under which Inductor keeps what it compiled.
TAG = f" rigid {len(RIGID_KERNELS)}"


@contextlib.contextmanager
def operands_as_captured() -> Iterator[str]:
    """Have Inductor give them operands of the strides that the graph says.

    For other threads, which may compile meanwhile, that is a copy more and not less right.
    """
    from torch._inductor import lowering

    constraints: dict[Any, Any] = lowering._maybe_layout_constraints
    ours = {op: lowering.constrain_to_fx_strides for op in RIGID_KERNELS if op not in constraints}
    constraints.update(ours)
    try:
        yield TAG
    finally:
        for op in ours:
            del constraints[op]
