"""Values that a backward compares with what came of them: computed again, they must be the same.

The gradient of ``amax`` goes to the elements that equal the largest. A compiler may take one
formula of ``exp`` in the loop of the forward and another one, as near, in that of the backward;
then none is equal, and the gradient is zero divided by the number of them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable

import torch
from torch import fx

from funcaot._torch.tensors.ops import OpOverload
from funcaot.aot.graph import graphs

__all__ = ["Compared"]

aten = torch.ops.aten

_EXTREMES = {
    "amax", "amin", "aminmax", "max", "min", "median", "nanmedian", "linalg_vector_norm", "norm",
    "scatter_reduce", "index_reduce", "segment_reduce", "_cdist_forward", "_pdist_forward",
}  # fmt: skip
_COMPARISONS = {"eq", "ne", "lt", "le", "gt", "ge"}
# What IEEE 754 rounds in one way, or doesn't round.
_EXACT = {
    "add", "sub", "rsub", "mul", "div", "neg", "abs", "sqrt", "relu", "clamp", "clamp_min",
    "clamp_max", "maximum", "minimum", "where", "sign", "floor", "ceil", "trunc", "round",
    "_to_copy", "copy", "clone", "fill", "zeros_like", "ones_like", "full_like", "tril", "triu",
    "masked_fill", "eq", "ne", "lt", "le", "gt", "ge", "logical_not", "logical_and", "logical_or",
    "bitwise_not", "bitwise_and", "bitwise_or", "isnan", "isinf", "isfinite", "alias",
}  # fmt: skip
_NARROW = (torch.bfloat16, torch.float16)


class Compared:
    """Which values of a forward have to be the same numbers in its backward."""

    def __init__(self, is_kept: Callable[[fx.Node], bool]) -> None:
        """Start.

        Args:
            is_kept: Whether a node isn't computed again in any case.
        """
        self._is_kept = is_kept

    def must_be_kept(self, node: fx.Node) -> bool:
        """Whether a backward compares this value, or is it, and another formula gives others."""
        name = _name_of(node)
        if name in _COMPARISONS:
            sources = graphs.tensor_inputs(node)
            return len(sources) > 1 and any(map(self._may_differ, sources))
        return _is_float(node) and _has_extremes(node) and self._may_differ(node)

    def _may_differ(self, node: fx.Node) -> bool:
        """Whether computing a value again may give other last digits."""
        pending, seen = [node], set[fx.Node]()
        while pending:
            current = pending.pop()
            if current in seen:
                continue
            seen.add(current)
            if not graphs.is_view(current) and self._is_kept(current):
                continue
            if _is_rounded(current):
                return True
            pending.extend(graphs.tensor_inputs(current))
        return False


def _is_rounded(node: fx.Node) -> bool:
    """Whether a result's digits depend on where an op is compiled."""
    if not _is_float(node) or graphs.is_view(node):
        return False
    value = graphs.value_of(node)
    return value.dtype in _NARROW or _name_of(node) not in _EXACT


def _has_extremes(node: fx.Node) -> bool:
    return any(_name_of(user) in _EXTREMES for user in _readers(node))


def _readers(node: fx.Node) -> Iterable[fx.Node]:
    """The nodes that read a value, also through views of it."""
    pending = [node]
    while pending:
        for user in pending.pop().users:
            if graphs.is_view(user):
                pending.append(user)
            else:
                yield user


def _is_float(node: fx.Node) -> bool:
    value = graphs.value_of(node)
    return isinstance(value, torch.Tensor) and (value.is_floating_point() or value.is_complex())


def _name_of(node: fx.Node) -> str | None:
    target = node.target
    if node.op != "call_function" or not isinstance(target, OpOverload):
        return None
    return target._schema.name.removeprefix("aten::")
