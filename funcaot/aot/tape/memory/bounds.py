"""The end of the memory of tensors that a captured function made, which fake tensors don't know."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from funcaot.aot.graph import graphs
from funcaot.aot.tape.memory.strided_views import extent
from funcaot.aot.tape.tape import Tape


def check_bounds(
    tape: Tape,
    tensor: torch.Tensor,
    size: Sequence[Any],
    stride: Sequence[Any],
    storage_offset: Any = None,
) -> None:
    """Check that ``as_strided`` stays inside of the storage of a tensor that was computed.

    Args:
        tape: The tape.
        tensor: What it is called on, in memory of no input.
        size: Sizes of the view.
        stride: Strides of the view.
        storage_offset: The view's first element; None for that of the tensor.

    Raises:
        RuntimeError: Eager's, if it doesn't.
    """
    offset = tensor.storage_offset() if storage_offset is None else storage_offset
    node = tape.node_of(tensor)
    if node is None or not all(type(number) is int for number in (*size, *stride, offset)):
        return
    root = graphs.view_root(node)
    memory = graphs.value_of(root)
    if root.op != "call_function" or not isinstance(memory, torch.Tensor):
        return
    if graphs.is_function_node(root) or graphs.is_in_memory_of_operand(root):
        return
    available = memory.untyped_storage().nbytes()
    reach = extent(tuple(size), tuple(stride))
    needed = (offset + reach) * tensor.element_size() if reach else 0
    if type(available) is int and needed > available:
        raise RuntimeError(
            f"setStorage: sizes {list(size)}, strides {list(stride)}, storage offset {offset}, and "
            f"itemsize {tensor.element_size()} requiring a storage size of {needed} are out of "
            f"bounds for storage of size {available}"
        )
