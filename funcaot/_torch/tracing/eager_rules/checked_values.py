"""Values that eager refuses: what a compiled op has to check; ``as_eager_takes`` asks here.

Eager looks whether an index lies in its dimension and whether a probability is one. Compilers take
negative indexes for ones from the end, and compute something of other values. A number that is
written to places of a constant becomes a comparison with the indexes, which are looked up nowhere.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch import fx
from torch.fx.experimental.proxy_tensor import get_proxy_mode, get_proxy_slot

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


def _of_places(x: torch.Tensor, dim: int, index: torch.Tensor, *value: Any) -> _Checks:
    if not _is_constant(x):
        return []  # Then compiled code looks the indexes up.
    size = x.shape[dim] if x.dim() else 1
    lies = aten.logical_and.default(aten.ge.Scalar(index, 0), aten.lt.Scalar(index, size))
    return [(aten.all.default(lies), f"index out of bounds for dimension {dim} in scatter")]


def _is_constant(tensor: Any) -> bool:
    """Whether a functional tensor is computed of numbers alone."""
    proxies = get_proxy_mode()
    if proxies is None:
        return False
    inner = torch._from_functional_tensor(tensor.elem)
    traced = get_proxy_slot(inner, proxies.tracer, None, lambda value: value.proxy)
    nodes: list[fx.Node] = [] if traced is None else [traced.node]
    for node in nodes:
        if node.op != "call_function" or len(nodes) > _FAR:
            return False
        nodes += node.all_input_nodes
    return bool(nodes)


# Ops that a constant is looked for behind.
_FAR = 30

_CHECKS: dict[Any, Callable[..., _Checks]] = {
    aten.binary_cross_entropy.default: _of_cross_entropy,
    aten.scatter.value: _of_places,
    aten.scatter_.value: _of_places,
}
