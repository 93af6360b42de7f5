"""Writes to memory that tensors detached from one another share, while functionalization looks on.

Such tensors have their elements in common but neither gradients nor tangents. A functional graph
knows elements only: what one of them reads after a write to another one hangs on that write.
Autograd's own record of the trace isn't affected.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import torch
from torch._subclasses.functional_tensor import FunctionalTensor
from torch.utils.weak import TensorWeakRef

from funcaot._torch.levels.functorch import fully_unwrapped
from funcaot._torch.tensors.ops import written_arguments


class DetachedWrites:
    """What one trace detaches, and what it writes to.

    Attributes:
        writing: Whether the op being recorded writes to memory that detached tensors share.
    """

    def __init__(self) -> None:
        """Nothing is detached yet."""
        self.writing = False
        self._detached: dict[int, list[TensorWeakRef]] = {}
        # Of each storage the tensors written to, or whose views were; they stay what they are.
        self._written: dict[int, dict[int, torch.Tensor]] = {}
        # What `.data` gave, by its id, with what it was taken of.
        self._uncounted: dict[int, tuple[torch.Tensor, torch.Tensor]] = {}
        self._counts: dict[int, int] = {}

    def detach(self, tensor: Any, source: Any = None) -> None:
        """Note a tensor that the user detached from another one.

        Args:
            tensor: What ``detach`` or ``.data`` gave.
            source: What ``.data`` was taken of, if writes through it are to be counted too.
        """
        inner = fully_unwrapped(tensor)
        if isinstance(inner, FunctionalTensor) and inner.layout is torch.strided:
            self._detached.setdefault(_memory(inner), []).append(TensorWeakRef(inner))
            if source is not None and not source.is_inference():
                self._uncounted[id(inner)] = (inner, fully_unwrapped(source))

    def counted(self, tensor: torch.Tensor) -> int:
        """How much of a tensor's version are writes through ``.data``; eager counts none."""
        return self._counts.get(id(_whole(tensor)), 0)

    def _count(self, written: torch.Tensor) -> None:
        """Count a write for what autograd saved: forward mode has used it by then."""
        _, source = self._uncounted.get(id(written), (None, None))
        if source is not None:
            torch.autograd.graph.increment_version(source)
            key = id(_whole(source))
            self._counts[key] = self._counts.get(key, 0) + 1
            self._count(_whole(source))

    def write(self, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> bool:
        """Note what an op writes to; whether a detached tensor shows that memory too."""
        found = False
        for target in _targets(func, args, kwargs):
            if target.layout is not torch.strided or target.is_inference():
                continue
            memory = _memory(target)
            whole = _whole(target)
            self._count(whole)
            self._written.setdefault(memory, {})[id(whole)] = whole
            found |= any(seen() is not None for seen in self._detached.get(memory, ()))
        return found

    def through_others(self, tensor: torch.Tensor) -> bool:
        """Whether a tensor's memory was written to by one that isn't a view of the same tensor."""
        whole = id(_whole(tensor))
        return any(key != whole for key in self._written.get(_memory(tensor), ()))


def _whole(tensor: torch.Tensor) -> torch.Tensor:
    return tensor if tensor._base is None else tensor._base


def _memory(tensor: torch.Tensor) -> int:
    return tensor.untyped_storage()._cdata


def _targets(func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Iterable[torch.Tensor]:
    for target in written_arguments(func, args, kwargs):
        if isinstance(target, FunctionalTensor):
            yield target
