"""Sizes of jagged tensors, which torch names by the tensor of offsets that they belong to."""

from __future__ import annotations

import itertools
import sys
from collections.abc import Mapping, Sequence
from typing import Any

import torch

from funcaot._torch.tensors.sizes.shapes import expression_of
from funcaot.errors import UnsupportedError

__all__ = [
    "BEGINS_EACH_ROW",
    "NestedSizes",
    "is_placeholder_of_torch",
    "is_ragged",
    "names_size",
    "number_of",
    "numbers_of",
    "refuse_ragged_number",
    "share_ragged_size",
    "view_from_jagged",
]

# Whether a mask is true at the beginning of each row of a batch, and nowhere else.
BEGINS_EACH_ROW = torch._nested_tensor_from_mask_left_aligned
_MODULE = "torch.nested._internal.nested_tensor"
# Far from those that torch counts for real tensors.
_numbers = itertools.count(1 << 40)


class NestedSizes:
    """What a fake mode asks for a jagged tensor's size, without an environment of symbols."""

    def __call__(self, *, nt_tensor_id: int | None = None) -> Any:
        """A size that equals itself only."""
        from torch.nested._internal.nested_int import NestedIntNode

        number = next(_numbers) if nt_tensor_id is None else nt_tensor_id
        return torch.SymInt(NestedIntNode(number, 1))  # type: ignore[arg-type]


def is_placeholder_of_torch(tensor: torch.Tensor) -> bool:
    """Whether it is the jagged tensor that torch passes to its own ops to choose their kernel."""
    module = sys.modules.get(_MODULE)
    return module is not None and tensor is module._dummy_instance


def refuse_ragged_number(op: Any, error: Exception) -> None:
    """Explain why an op can't be recorded, if it was given a jagged tensor's size as a number.

    Raises:
        UnsupportedError: If it was.
    """
    if "NestedIntNode" in str(error):
        raise UnsupportedError(
            f"{op} is given the ragged size of a jagged tensor as a number.",
            remedy="compute with values() and offsets(), or outside of the compiled function.",
        ) from error


def is_ragged(size: Any) -> bool:
    """Whether it is the size of a jagged dimension, or a stride that is made of it."""
    return isinstance(size, torch.SymInt) and size.node.is_nested_int()


def number_of(size: Any) -> Any:
    """A size as what compares: a number, an expression of open sizes, or that it is ragged.

    A ragged size is whatever the inner tensors say.
    """
    return "ragged" if is_ragged(size) else expression_of(size)


def numbers_of(sizes: Sequence[Any]) -> tuple[Any, ...]:
    """The same of several."""
    if all(type(size) is int for size in sizes):
        return tuple(sizes)
    return tuple(map(number_of, sizes))


def names_size(fake: Any) -> bool:
    """Whether a fake tensor is one of offsets, or of lengths, that a ragged size is named by."""
    return getattr(fake, "nested_int_memo", None) is not None


def share_ragged_size(fake: Any, real: torch.Tensor | None) -> None:
    """Let a fake tensor of offsets mean the size that the real one means, if it means one."""
    module = sys.modules.get(_MODULE)
    if module is None or real is None or real.dim() != 1 or real.is_floating_point():
        return
    size = module._tensor_symint_registry.get(real)
    if size is not None:
        fake.nested_int_memo = size


def view_from_jagged(
    values: torch.Tensor, ragged_dim: int, others: Mapping[str, torch.Tensor]
) -> torch.Tensor:
    """A jagged view of values.

    Args:
        values: The values.
        ragged_dim: Which dimension is ragged.
        others: The other tensors that a jagged tensor holds, by the names of its attributes.
    """
    from torch.nested._internal.nested_tensor import _nt_view_dummy

    return torch._nested_view_from_jagged(  # type: ignore[attr-defined]
        values,
        others["_offsets"],
        _nt_view_dummy(),
        others.get("_lengths"),
        ragged_dim,
        others.get("_min_seqlen_tensor"),
        others.get("_max_seqlen_tensor"),
    )
