"""Ops that fail for no values and take little time: they may run before values are known to fit."""

from __future__ import annotations

import torch
from torch import fx

from funcaot._torch.tensors.ops import OpOverload
from funcaot.aot.graph import graphs
from funcaot.aot.graph.policy import is_pointwise

__all__ = ["is_sure"]

# Without a tag that says so. No op is here that looks something up (a place may be beyond the
# end), factors a matrix, draws (a probability may be negative) or asserts; nor a product, which is
# too much work for a call that then leaves.
_NAMES = frozenset(
    {
        "_log_softmax", "_log_softmax_backward_data", "_softmax", "_softmax_backward_data",
        "_to_copy", "_unsafe_view", "add", "arange", "cat", "clone", "constant_pad_nd",
        "convert_element_type", "copy", "cumprod", "cumsum", "diag_embed", "empty", "empty_like",
        "empty_strided", "flip", "full", "full_like", "iota", "logcumsumexp", "logsumexp",
        "masked_fill", "max", "min", "native_group_norm", "native_layer_norm", "new_empty",
        "new_full", "new_ones", "new_zeros", "ones", "ones_like", "repeat", "roll",
        "scalar_tensor", "select_backward", "slice_backward", "slice_scatter", "stack", "std",
        "tril", "triu", "var", "var_mean", "where", "zeros", "zeros_like",
    }
)  # fmt: skip
# By zero, of whole numbers.
_DIVIDING = frozenset({"div", "floor_divide", "fmod", "remainder"})


def is_sure(node: fx.Node) -> bool:
    """Whether an op of a compiled graph soon computes something, whatever values it reads."""
    if node.target is graphs.GETITEM:
        return is_sure(node.args[0])  # type: ignore[arg-type]
    op = graphs.op_of(node)
    if not isinstance(op, OpOverload) or graphs.has_effect(node):
        return False
    name = op._schema.name.partition("::")[2]
    value = graphs.value_of(node)
    if name in _DIVIDING and not (isinstance(value, torch.Tensor) and value.is_floating_point()):
        return False
    if is_pointwise(node) or graphs.is_view(node) or name in _NAMES:
        return True
    return torch.Tag.reduction in op.tags
