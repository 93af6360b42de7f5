"""Who holds a tensor's memory."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import torch

__all__ = ["copied_to", "restrided_in_place", "storage_of", "users_beside"]


def storage_of(tensor: torch.Tensor) -> int:
    """What identifies a strided tensor's memory while it lives."""
    return tensor.untyped_storage()._cdata


def users_beside(tensors: Iterable[torch.Tensor]) -> bool:
    """Whether something holds the memory of some tensors besides them and what they are views of.

    Args:
        tensors: Tensors that share one storage.
    """
    held = {id(holder): holder for tensor in tensors for holder in (tensor, tensor._base)}
    holders = [holder for holder in held.values() if holder is not None]
    storage = holders[0].untyped_storage()
    # The object that this function looks through holds it too.
    return torch._C._storage_Use_Count(storage._cdata) > len(holders) + 1


def restrided_in_place(tensor: torch.Tensor, stride: Sequence[int]) -> torch.Tensor:
    """The same elements in the same memory under other strides; autograd sees no view."""
    reinterpret = torch._C._dynamo.guards._reinterpret_tensor  # type: ignore[attr-defined]
    # What is added to the tensor's own offset.
    return reinterpret(tensor, tuple(tensor.shape), tuple(stride), 0)


def copied_to(tensor: torch.Tensor, stride: Sequence[int], offset: int) -> torch.Tensor:
    """The same elements at a place in a new storage; autograd sees no view."""
    last = sum((size - 1) * step for size, step in zip(tensor.shape, stride, strict=True))
    memory = tensor.new_empty(offset + max(last, 0) + 1)
    reinterpret = torch._C._dynamo.guards._reinterpret_tensor  # type: ignore[attr-defined]
    made = reinterpret(memory, tuple(tensor.shape), tuple(stride), offset)
    if not tensor.numel() or 0 not in stride:
        return made.copy_(tensor)
    # Elements along an expanded dimension are one, which is written once.
    expanded = [step == 0 and size > 1 for size, step in zip(tensor.shape, stride, strict=True)]
    first = [1 if one else size for size, one in zip(tensor.shape, expanded, strict=True)]
    narrowed = tensor[tuple(slice(0, 1) if one else slice(None) for one in expanded)]
    reinterpret(memory, tuple(first), tuple(stride), offset).copy_(narrowed)
    return made
