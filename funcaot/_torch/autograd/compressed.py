"""Sparse tensors in compressed layouts, which autograd can't record in a capture; tapes ask here.

Autograd asks what it records for its layout. A functional tensor of such a layout can't say, which
ends the process.
"""

from __future__ import annotations

from typing import Any

import torch
from torch.utils._pytree import tree_leaves

from funcaot.errors import UnsupportedError

__all__ = ["refuse_compressed", "refuse_recorded_compressed"]

_LAYOUTS = (torch.sparse_csr, torch.sparse_csc, torch.sparse_bsr, torch.sparse_bsc)


def refuse_compressed(layout: torch.layout, *, requires_grad: bool) -> None:
    """Refuse a tensor in a compressed layout that requires grad.

    Raises:
        UnsupportedError: For one.
    """
    if requires_grad and layout in _LAYOUTS:
        raise UnsupportedError(
            f"A tensor of layout {layout} requires grad in a compiled function.",
            remedy="use the layout sparse_coo (to_sparse()), or differentiate with respect to the "
            "values and call this part outside of the compiled function.",
        )


def refuse_recorded_compressed(made: Any, given: Any) -> None:
    """Refuse results in a compressed layout that autograd is about to record.

    Args:
        made: What an op has made, below autograd.
        given: What it was given.

    Raises:
        UnsupportedError: If something given requires grad and something made is compressed.
    """
    if not torch.is_grad_enabled():
        return
    for value in tree_leaves(made):
        if isinstance(value, torch.Tensor) and value.layout in _LAYOUTS:
            tensors = [leaf for leaf in tree_leaves(given) if isinstance(leaf, torch.Tensor)]
            recorded = any(tensor.requires_grad for tensor in tensors)
            refuse_compressed(value.layout, requires_grad=recorded)
