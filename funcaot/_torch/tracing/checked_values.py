"""Values that eager refuses: what a compiled op has to check; ``as_eager_takes`` asks here.

Eager looks whether an index lies in its dimension and whether a probability is one. Compilers take
negative indexes for ones from the end, and compute something of other values.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch

__all__ = ["check_classes", "with_checked_values"]

aten = torch.ops.aten

# At which place they take indexes of a dimension, none of which counts from the end.
_INDEXES = {
    aten.index_select.default: 2,
    aten.index_add.default: 2,
    aten.index_add_.default: 2,
    aten.max_unpool2d.default: 1,
    aten.max_unpool3d.default: 1,
}


def with_checked_values(
    mode: Any, func: Any, args: tuple[Any, ...], kwargs: Mapping[str, Any]
) -> tuple[Any, ...]:
    """An op's arguments, of which the graph checks what eager does.

    Args:
        mode: The functionalization that runs the op, which isn't active.
        func: The op.
        args: Its arguments, functional tensors among them.
        kwargs: Its keywords.
    """
    place = _INDEXES.get(func)
    if place is not None and len(args) > place:
        with mode:
            return (*args[:place], _none_from_the_end(args[place]), *args[place + 1 :])
    check = _CHECKS.get(func)
    if check is not None:
        with mode:
            for holds, message in check(*args):
                aten._assert_async.msg(holds, message)
    return args


def check_classes(index: torch.Tensor, count: int) -> None:
    """Check the indexes that ``one_hot`` is given; it is no op that could be asked for.

    Args:
        index: The indexes, of any shape.
        count: How many classes there are.
    """
    torch._assert_async((index >= 0).all(), "Class values must be non-negative.")
    torch._assert_async((index < count).all(), "Class values must be smaller than num_classes.")


def _none_from_the_end(index: torch.Tensor) -> torch.Tensor:
    """Indexes of which the negative ones lie beyond every dimension."""
    beyond = torch.iinfo(index.dtype).max // 2
    return aten.masked_fill.Scalar(index, aten.lt.Scalar(index, 0), beyond)


_Checks = Sequence[tuple[torch.Tensor, str]]


def _is_probability(x: torch.Tensor) -> torch.Tensor:
    return aten.all.default(aten.logical_and.default(aten.ge.Scalar(x, 0), aten.le.Scalar(x, 1)))


def _of_cross_entropy(x: torch.Tensor, target: torch.Tensor, *settings: Any) -> _Checks:
    named = (("input", x), ("target", target))
    return [
        (_is_probability(value), f"all elements of {name} should be between 0 and 1")
        for name, value in named
    ]


_CHECKS: dict[Any, Callable[..., _Checks]] = {
    aten.binary_cross_entropy.default: _of_cross_entropy,
}
