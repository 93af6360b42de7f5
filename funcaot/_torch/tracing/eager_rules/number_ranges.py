"""Numbers beyond a tensor's dtype, which eager refuses: ``masked_fill(mask, -1e9)`` of float16.

``as_eager_takes`` asks here. Symbolic tensors take such a number, and compiled code makes an
infinity of it. Ops differ in whether they do (a sum takes it), so each is tried on a few zeros.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import torch
from torch.utils._pytree import tree_leaves

from funcaot._torch.tracing.eager_rules.on_zeros import run_on_zeros

__all__ = ["refuse_numbers"]

aten = torch.ops.aten

_NUMBERS = ("number", "Optional[number]", "float", "Optional[float]")
# They make as much as a number says; where that is.
_SIZES = {aten.full.default: 0, aten.new_full.default: 1}


def refuse_numbers(func: Any, args: Sequence[Any], kwargs: Mapping[str, Any]) -> None:
    """Raise what eager raises for a number that a dtype doesn't hold.

    Args:
        func: An op.
        args: Its arguments, functional tensors among them.
        kwargs: Its keywords.

    Raises:
        RuntimeError: Eager's own.
    """
    largest = max(_numbers(func, args, kwargs), default=0.0)
    if not largest or largest <= _least_of_dtypes(args, kwargs):
        return
    place = _SIZES.get(func)
    given = [() if index == place else value for index, value in enumerate(args)]
    try:
        run_on_zeros(func, given, kwargs)
    except (RuntimeError, TypeError, ValueError, IndexError) as error:
        if "without overflow" in str(error):
            raise RuntimeError(*error.args) from None


@functools.cache
def _places(func: Any) -> tuple[tuple[int, str], ...]:
    """Where an op takes numbers that aren't sizes."""
    if func.namespace != "aten" or torch.Tag.nondeterministic_seeded in func.tags:
        return ()
    arguments = enumerate(func._schema.arguments)
    return tuple((at, each.name) for at, each in arguments if str(each.type) in _NUMBERS)


def _numbers(func: Any, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Iterator[float]:
    """The magnitudes of an op's numbers, but for infinities."""
    for place, name in _places(func):
        value: Any = args[place] if place < len(args) else kwargs.get(name)
        if type(value) in (int, float) and math.isfinite(value):
            yield abs(value)


def _least_of_dtypes(args: Sequence[Any], kwargs: Mapping[str, Any]) -> float:
    """The largest number that each of an op's dtypes holds."""
    leaves = tree_leaves((list(args), dict(kwargs)))
    dtypes = {leaf.dtype for leaf in leaves if isinstance(leaf, torch.Tensor)}
    dtypes |= {leaf for leaf in leaves if isinstance(leaf, torch.dtype)}
    return min(map(_largest, dtypes or {torch.get_default_dtype()}))


def _largest(dtype: torch.dtype) -> float:
    if dtype is torch.bool:
        return math.inf
    of_dtype = torch.finfo if dtype.is_floating_point or dtype.is_complex else torch.iinfo
    return of_dtype(dtype).max
