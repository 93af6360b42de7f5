"""What happens in a capture and can't be seen afterwards; the effects are made of it."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import torch

from funcaot._torch.tracing.tracing import storage_key
from funcaot.aot.capture.stale_views import ShapeHistory

__all__ = ["InputEvents", "Reshapes"]

# Methods with their arguments, in the order of the calls.
Reshapes = tuple[tuple[str, tuple[Any, ...]], ...]


@dataclass
class InputEvents:
    """What happens to tensors of the tape that only shows while it happens, by ``id``.

    Attributes:
        wholes: For a tensor whose shape or storage was changed in place, its value as it was.
        history: Changes of shapes in place.
        reshapes: For such a tensor the calls that changed it, None if one of them names strides
            or sizes.
        resized: Tensors that were resized.
        placed: Tensors of whose storage a place was named that may be outside of them: by its
            absolute offset, or by ``as_strided`` with a longer reach.
        grown: Tensors that were resized to more elements.
        detached: Tensors that ``detach_`` was called on.
        fixed: Tensors that can't be reshaped, since other inputs are views of them.
        turned: Tensors of which a view's shape was changed, recorded by autograd.
        sources: For a tensor whose storage was replaced by ``set_``, the tensor it came from.
        reassigned: Of these, tensors whose ``.data`` was assigned to.
        shared: Whether inputs live in regions.
        reads_data: Whether the ``.data`` of what has a derivative was used.
        written_as_text: Whether a tensor was printed, of which a capture warns once.
        reads_layout: Whether strides of a tensor were asked for.
        unsafe: For each ``unsafe_split``, its source and the source's version, and its results.
    """

    wholes: dict[int, torch.Tensor] = field(default_factory=dict)
    history: ShapeHistory = field(default_factory=ShapeHistory)
    reshapes: dict[int, Reshapes | None] = field(default_factory=dict)
    resized: set[int] = field(default_factory=set)
    placed: list[torch.Tensor] = field(default_factory=list)
    grown: set[int] = field(default_factory=set)
    detached: set[int] = field(default_factory=set)
    fixed: set[int] = field(default_factory=set)
    turned: set[int] = field(default_factory=set)
    sources: dict[int, torch.Tensor] = field(default_factory=dict)
    reassigned: set[int] = field(default_factory=set)
    shared: bool = False
    reads_data: bool = False
    written_as_text: bool = False
    reads_layout: bool = False
    unsafe: list[tuple[torch.Tensor, int, tuple[torch.Tensor, ...]]] = field(default_factory=list)

    def keep_whole(self, tensor: torch.Tensor) -> None:
        """Keep what a tensor shows now, whose memory others may go on to see and write to."""
        if id(tensor) not in self.wholes:
            with torch.no_grad():
                self.wholes[id(tensor)] = tensor.data

    def is_assigned(self, tensor: torch.Tensor) -> bool:
        """Whether a tensor lives in memory that was assigned to the ``.data`` of one."""
        key = storage_key(tensor)
        return any(storage_key(self.sources[found]) == key for found in self.reassigned)
