"""Eager's ops, run on zeros for the errors that they raise; the other rules here do."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch.utils._python_dispatch import _disable_current_modes
from torch.utils._pytree import tree_map

__all__ = ["few_sizes", "few_zeros", "run_on_zeros"]


def few_zeros(value: Any) -> Any:
    """A few zeros, in as many dimensions, for a tensor; dimensions that were equal stay so."""
    if isinstance(value, torch.SymInt | torch.SymFloat | torch.SymBool):
        return value.node.hint
    if not isinstance(value, torch.Tensor):
        return value
    return torch.zeros(few_sizes(value), dtype=value.dtype)


def few_sizes(tensor: torch.Tensor) -> list[int]:
    """The sizes of these."""
    sizes = [size if isinstance(size, int) else size.node.hint for size in tensor.shape]
    return [min(size, 2) for size in sizes]


def run_on_zeros(
    func: Any,
    args: Sequence[Any],
    kwargs: Mapping[str, Any],
    zeros: Callable[[Any], Any] = few_zeros,
) -> None:
    """Run an op as eager does, without a word.

    Args:
        func: The op.
        args: Its arguments, functional tensors among them.
        kwargs: Its keywords.
        zeros: Makes the zeros that stand for a tensor.

    Raises:
        Exception: Eager's own.
    """
    with _disable_current_modes(), torch.no_grad(), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        func(*tree_map(zeros, list(args)), **tree_map(zeros, dict(kwargs)))
