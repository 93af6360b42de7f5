"""Writes that eager refuses and functionalization doesn't; ``FunctionalMode`` asks here.

``x.add_(1j)`` of a real ``x`` raises. Functionalization computes ``x.add(1j)`` and casts what comes
out, without a word. So an in-place op whose dtypes may not fit is tried on a few zeros. A write to
elements that lie in one place raises, too; functionalization would compute something else.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import torch
from torch.utils._pytree import tree_leaves

from funcaot._torch.tensors.ops import written_arguments
from funcaot._torch.tracing.eager_rules.on_zeros import few_sizes, run_on_zeros
from funcaot._torch.tracing.eager_rules.outside_memory import OutsideMemory
from funcaot._torch.tracing.eager_rules.overlapping_reads import refuse_overlapping_reads
from funcaot.errors import UnsupportedError

__all__ = ["refuse_resized_storage", "refuse_writes", "turned_elsewhere"]


_TOO_LARGE = ("match the broadcast shape", "expanded size of the tensor", "expand(")


def refuse_writes(
    func: Any, args: Sequence[Any], kwargs: Mapping[str, Any], outside: OutsideMemory
) -> None:
    """Refuse what an in-place op would do in eager only, or not at all.

    Args:
        func: The op, below autograd.
        args: Its arguments, functional tensors among them.
        kwargs: Its keywords.
        outside: Memory that isn't torch's; writes to it are noted.

    Raises:
        UnsupportedError: If an element has several places in a tensor.
        RuntimeError: Eager's own, for dtypes or shapes that don't fit, or memory that is read, too.
    """
    outside.note_write(func, args, kwargs)
    _refuse_overlapping_writes(func, args, kwargs)
    refuse_overlapping_reads(func, args, kwargs)
    _refuse_larger_results(func, args, kwargs)
    _refuse_lossy_writes(func, args, kwargs)


def refuse_resized_storage(func: Any) -> None:
    """Refuse an op that frees or resizes memory, which its schema doesn't call a write.

    Args:
        func: The op.

    Raises:
        UnsupportedError: If it is one.
    """
    if func.overloadpacket is torch.ops.inductor.resize_storage_bytes_:
        raise UnsupportedError(
            "A program resizes the storage of a tensor, which no graph says.",
            remedy="resize storages outside of the compiled function.",
        )


def _refuse_overlapping_writes(func: Any, args: Sequence[Any], kwargs: Mapping[str, Any]) -> None:
    """Refuse to write to a tensor whose elements share memory with each other.

    Eager refuses most such ops, and for the others writes to all elements at once.
    """
    if torch.Tag.inplace_view in func.tags:
        return  # It changes how a tensor looks, not what lies in it.
    for tensor in written_arguments(func, args, kwargs):
        if not _is_strided(tensor):
            continue
        sizes = list(zip(tensor.shape, tensor.stride(), strict=True))
        if any(type(size) is int and size == 0 for size, _ in sizes):
            continue
        if any(size > 1 and step == 0 for size, step in sizes):
            raise UnsupportedError(
                f"{func._schema.name.split('::')[1]} writes to a tensor of shape "
                f"{list(tensor.shape)} and strides {list(tensor.stride())}: more than one of its "
                "elements is in one place in memory.",
                remedy="write to the tensor before it is expanded, or to a clone.",
            )


def _refuse_larger_results(func: Any, args: Sequence[Any], kwargs: Mapping[str, Any]) -> None:
    """Raise what eager raises of an in-place op whose result is of a larger shape.

    Functionalization gives some tensors the shape of the result.
    """
    changed = func._schema.arguments[0].alias_info
    if func.namespace != "aten" or changed is None or not changed.is_write or _draws(func):
        return
    given = [*args, *kwargs.values()]
    rows: Iterable[Any] = [given]
    if func._opname.startswith("_foreach_"):
        rows = zip(*(value for value in given if isinstance(value, list | tuple)), strict=False)
    if not any(_extends(other, written) for written, *others in rows for other in others):
        return
    try:
        run_on_zeros(func, args, kwargs)
    except (RuntimeError, NotImplementedError) as error:
        if any(text in str(error) for text in _TOO_LARGE):
            raise RuntimeError(*error.args) from None


def _extends(tensor: Any, written: Any) -> bool:
    """Whether a tensor has several elements where one that is written to has one."""
    if not isinstance(tensor, torch.Tensor) or not isinstance(written, torch.Tensor):
        return False
    sizes, own = few_sizes(tensor), few_sizes(written)
    ends = zip(reversed(sizes), reversed(own), strict=False)
    return len(sizes) > len(own) or any(size > other for size, other in ends)


def _draws(func: Any) -> bool:
    return torch.Tag.nondeterministic_seeded in func.tags


def _refuse_lossy_writes(func: Any, args: Sequence[Any], kwargs: Mapping[str, Any]) -> None:
    """Raise what eager raises of an in-place op for its dtypes."""
    if func.namespace != "aten" or _draws(func) or not _may_not_fit(func, args, kwargs):
        return
    try:
        run_on_zeros(func, args, kwargs)
    except (RuntimeError, NotImplementedError) as error:
        if "can't be cast to" in str(error):
            raise RuntimeError(*error.args) from None


def _may_not_fit(func: Any, args: Sequence[Any], kwargs: Mapping[str, Any]) -> bool:
    """Whether something that is written to is of a narrower kind than what may come out."""
    written = [value for value in written_arguments(func, args, kwargs) if _is_strided(value)]
    lowest = min((_kind(value.dtype) for value in written), default=3)
    if lowest == 2:
        given = [leaf for leaf in tree_leaves((args, kwargs)) if _is_complex(leaf)]
        return bool(given)
    return lowest < 2


def _is_strided(value: Any) -> bool:
    return isinstance(value, torch.Tensor) and value.layout is torch.strided


def _is_complex(leaf: Any) -> bool:
    return leaf.is_complex() if isinstance(leaf, torch.Tensor) else isinstance(leaf, complex)


def _kind(dtype: torch.dtype) -> int:
    """0 to 3 for truth values, integers, floating-point and complex numbers."""
    if dtype.is_complex:
        return 3
    if dtype.is_floating_point:
        return 2
    return 0 if dtype is torch.bool else 1


def turned_elsewhere(func: Any) -> UnsupportedError:
    """The error for a write to a transposed view as another dtype."""
    return UnsupportedError(
        f"{func.overloadpacket.__name__} writes to a view of a tensor as another dtype, whose "
        "dimensions lie in another order than in a new tensor.",
        remedy="write to a contiguous view, or view a clone as the other dtype.",
    )
