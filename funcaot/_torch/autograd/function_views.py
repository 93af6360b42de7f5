"""What Functions return that shares memory with their inputs, while functionalization looks on.

A Function is one node of a trace, so a view that its forward makes is a tensor of its own there.
That is right until one of the two is written to; what the other one holds is outdated then.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch

from funcaot.errors import UnsupportedError


@dataclass(frozen=True)
class _Group:
    """Tensors that share memory: their versions when they were met, and whose Function it was."""

    name: str
    tensors: tuple[torch.Tensor, ...]
    versions: tuple[int, ...]


@dataclass
class FunctionViews:
    """The groups of one trace.

    Attributes:
        groups: Tensors that share memory.
        outdated: Storages whose traced value isn't what they would hold, and whose fault that is.
        pushed: Whether the trace is for a call with tangents, which pass through ``no_grad``.
    """

    groups: list[_Group] = field(default_factory=list)
    outdated: dict[int, str] = field(default_factory=dict)
    pushed: bool = False

    def add(self, name: str, tensors: Sequence[torch.Tensor]) -> None:
        """Note what one Function took and returned in the same memory."""
        tensors = tuple(tensors)
        self.groups.append(_Group(name, tensors, tuple(tensor._version for tensor in tensors)))

    def check(self, used: Iterable[Any]) -> None:
        """Refuse tensors that are outdated.

        Raises:
            UnsupportedError: If one is.
        """
        for group in self.groups:
            now = [tensor._version for tensor in group.tensors]
            written = [new != old for new, old in zip(now, group.versions, strict=True)]
            count = sum(written)
            for tensor, changed in zip(group.tensors, written, strict=True):
                if count > changed:  # by another one of them
                    self.outdated[tensor.untyped_storage()._cdata] = group.name
        if not self.outdated:
            return
        for value in used:
            if isinstance(value, torch.Tensor) and value.layout is torch.strided:
                name = self.outdated.get(value.untyped_storage()._cdata)
                if name is not None:
                    raise UnsupportedError(
                        f"{name} returns a view, its input or one tensor in two ways, and that "
                        "memory is written to and then used again.",
                        remedy="return a clone from forward, or write out of place.",
                    )

    def stands_for(self, output: Any, operand: torch.Tensor) -> bool:
        """Whether an output is an operand that was returned as it is."""
        if not isinstance(output, torch.Tensor) or operand.layout is not torch.strided:
            return False
        together = any(
            any(tensor is output for tensor in group.tensors)
            and any(tensor is operand for tensor in group.tensors)
            for group in self.groups
        )
        return together and (output.shape, output.stride()) == (operand.shape, operand.stride())

    def clear(self) -> None:
        """Forget everything."""
        self.groups.clear()
        self.outdated.clear()
