"""Storages: what a function does to them that no graph says, and inputs whose storage is too small.

A storage that is resized frees or makes memory below every tensor that lies in it. A capture has
tensors without memory, and a graph computes tensors, so this is refused by name. So is a call that
would read or write memory that isn't there (fully sharded parameters keep storages of zero bytes),
where eager ends the process or reads what lies behind.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import torch
from torch import fx

from funcaot._torch.levels import functorch
from funcaot.aot.graph.policy import makes_alike
from funcaot.aot.tape.memory.strided_views import extent
from funcaot.errors import UnsupportedError

# What gives out the storage of a tensor.
READING = frozenset(("storage", "untyped_storage", "_typed_storage"))
RESIZING = "resize_storage_bytes_"
_INVALID = "on an invalid python storage"


def refuse_resizing(name: str) -> UnsupportedError:
    """What is raised where a storage is resized."""
    return UnsupportedError(
        f"{name} resizes the storage of a tensor, which frees or makes memory that other tensors "
        "may lie in; no graph says that.",
        remedy="resize storages outside of the compiled function.",
    )


def refuse_storage(name: str, described: str) -> UnsupportedError:
    """What is raised where a function asks for the storage of an input."""
    return UnsupportedError(
        f"{name} uses the storage of {described}, of which a capture has neither the size nor the "
        "memory; it can't be read, written to or resized there.",
        remedy="use the storage outside of the compiled function, or work on the tensor.",
    )


def explained(error: Exception, name: str) -> UnsupportedError | None:
    """The refusal for an error of torch about a storage without memory, if it is one."""
    text = str(error)
    if not isinstance(error, RuntimeError) or _INVALID not in text:
        return None
    if "resize_()" in text:
        return refuse_resizing(name)
    return refuse_storage(name, "a tensor that it made")


def refuse_missing(tensors: Sequence[torch.Tensor], used: Iterable[int], name: str) -> None:
    """Refuse a call whose inputs lie in storages that are smaller than they are.

    Args:
        tensors: The call's inputs.
        used: Positions of those that the program reads or writes to.
        name: The user's function, for messages.

    Raises:
        UnsupportedError: If memory of one of those is missing.
    """
    for index in used:
        tensor = tensors[index]
        missing = missing_bytes(tensor)
        if missing:
            raise UnsupportedError(
                f"{name} uses input {index}, a tensor {list(tensor.shape)} of {tensor.dtype}, "
                f"whose storage is {missing} bytes too small: its memory was freed.",
                remedy="resize its storage before the call (x.untyped_storage().resize_(nbytes)).",
            )


def missing_bytes(tensor: Any) -> int:
    """By how much a tensor's storage is too small for it: its memory was freed."""
    if tensor.layout is not torch.strided or functorch.is_functorch_wrapped_tensor(tensor):
        return 0
    if tensor.numel() == 0 or tensor.device.type == "meta":
        return 0
    last = tensor.storage_offset() + extent(tuple(tensor.shape), tuple(tensor.stride()))
    return max(0, last * tensor.element_size() - tensor.untyped_storage().nbytes())


def used_inputs(nodes: Sequence[fx.Node | None], wanted: Iterable[fx.Node]) -> frozenset[int]:
    """Positions of the inputs whose elements a program reads, not only their shape.

    Args:
        nodes: The tape's node of each input.
        wanted: The nodes that the program computes.
    """
    read: set[fx.Node] = set()
    pending = list(wanted)
    while pending:
        node = pending.pop()
        if node not in read:
            read.add(node)
            if not makes_alike(node):
                pending += node.all_input_nodes
    return frozenset(index for index, node in enumerate(nodes) if node in read)
