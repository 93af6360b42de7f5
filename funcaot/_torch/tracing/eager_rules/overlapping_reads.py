"""Writes to memory that the same op reads as another tensor; ``refuse_writes`` asks here.

``x[:3].mul_(x[1:4])`` raises in eager, which looks at where tensors begin and end.
Functionalization reads everything first, without a word. So such an op is run on zeros that lie as
its arguments do.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch._prims_common import is_non_overlapping_and_dense_or_false
from torch.utils._pytree import tree_leaves

from funcaot._torch.tensors.ops import written_arguments
from funcaot._torch.tracing.eager_rules.on_zeros import few_zeros, run_on_zeros

__all__ = ["refuse_overlapping_reads"]


def refuse_overlapping_reads(func: Any, args: Sequence[Any], kwargs: Mapping[str, Any]) -> None:
    """Raise what eager raises of an op that writes to what it reads as another tensor.

    Args:
        func: The op, below autograd.
        args: Its arguments, functional tensors among them.
        kwargs: Its keywords.

    Raises:
        RuntimeError: Eager's own.
    """
    given = [leaf for leaf in tree_leaves((args, kwargs)) if _is_strided(leaf)]
    if len(given) < 2 or torch.Tag.nondeterministic_seeded in func.tags:
        return
    written = [value for value in written_arguments(func, args, kwargs) if _is_strided(value)]
    in_order = torch.Tag.pointwise in func.tags  # Each element is read before it is written.
    if not any(_meet(one, other, in_order) for one in written for other in _others(given, one)):
        return
    try:
        run_on_zeros(func, args, kwargs, _lying(given))
    except RuntimeError as error:
        if "to a single memory location" in str(error):
            raise RuntimeError(*error.args) from None


def _is_strided(value: Any) -> bool:
    return isinstance(value, torch.Tensor) and value.layout is torch.strided


def _others(given: Sequence[torch.Tensor], written: torch.Tensor) -> list[torch.Tensor]:
    """All that is given but for one occurrence of what is written to."""
    place = next(index for index, each in enumerate(given) if each is written)
    return [*given[:place], *given[place + 1 :]]


def _meet(one: torch.Tensor, other: torch.Tensor, in_order: bool) -> bool:
    """Whether eager may see that two tensors share elements."""
    if _key(one) != _key(other):
        return False
    if one is other or (
        one.storage_offset() == other.storage_offset()
        and one.shape == other.shape
        and one.stride() == other.stride()
    ):
        return not in_order
    if not (one.numel() and other.numel()):
        return False
    if not (
        is_non_overlapping_and_dense_or_false(one) and is_non_overlapping_and_dense_or_false(other)
    ):
        return False
    (first, last), (start, end) = _range(one), _range(other)
    return bool(first < end) and bool(start < last)


def _range(tensor: torch.Tensor) -> tuple[Any, Any]:
    """The first byte of a dense tensor, and the first one after it."""
    first = tensor.storage_offset() * tensor.element_size()
    return first, first + tensor.numel() * tensor.element_size()


def _lying(given: Sequence[torch.Tensor]) -> Callable[[Any], Any]:
    """Zeros for what an op is given, each tensor where it lies in its storage.

    Args:
        given: All of its tensors.
    """
    lengths: dict[int, int] = {}
    for tensor in given:
        sizes, steps = _present(tensor.shape), _present(tensor.stride())
        (last,) = _present((tensor.storage_offset(),))
        last += sum(max(size - 1, 0) * step for size, step in zip(sizes, steps, strict=True))
        key = _key(tensor)
        lengths[key] = max(lengths.get(key, 0), (last + 1) * tensor.element_size())
    memory: dict[int, torch.UntypedStorage] = {}

    def zeros(value: Any) -> Any:
        if not _is_strided(value):
            return few_zeros(value)
        key = _key(value)
        if key not in memory:
            memory[key] = torch.zeros(lengths[key], dtype=torch.uint8).untyped_storage()
        (offset,) = _present((value.storage_offset(),))
        sizes, steps = _present(value.shape), _present(value.stride())
        return torch.empty(0, dtype=value.dtype).set_(memory[key], offset, sizes, steps)

    return zeros


def _present(numbers: Sequence[Any]) -> tuple[int, ...]:
    return tuple(number if type(number) is int else number.node.hint for number in numbers)


def _key(tensor: torch.Tensor) -> int:
    return tensor.untyped_storage()._cdata
