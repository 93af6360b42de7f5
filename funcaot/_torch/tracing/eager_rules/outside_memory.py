"""Tensors made of memory that isn't torch's, a NumPy array's say; ``FunctionalMode`` tells of them.

A graph has copies of them as constants: a call may find an equal array elsewhere, and this one
changed. So nothing may be written to one that others see, it isn't given out, and what is in the
memory has to stay what it was until the capture ends.
"""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch.utils._python_dispatch import _disable_current_modes

from funcaot._torch.tensors.ops import written_arguments
from funcaot.errors import UnsupportedError

__all__ = ["OutsideMemory"]

_REMEDY = "pass the memory as a tensor (torch.from_numpy) among the arguments, or clone it."


class OutsideMemory:
    """What a tape's constants share with something that isn't a tensor."""

    def __init__(self) -> None:
        """There is none yet."""
        self._found: dict[int, tuple[Any, torch.Tensor, torch.Tensor]] = {}
        self._written: dict[int, str] = {}
        self._copied: tuple[torch.Tensor, torch.Tensor] | None = None

    def copied(self, func: Any, args: tuple[Any, ...]) -> tuple[Any, ...]:
        """The arguments of an op, with a copy of what ``torch.from_numpy`` and the like made."""
        self._copied = None
        if func is not torch.ops.aten.lift_fresh.default or not args[0].numel():
            return args
        real = args[0]
        with _disable_current_modes():
            if real.untyped_storage().resizable():
                return args
            copy = real.new_empty(0).set_(
                real.untyped_storage().clone(), real.storage_offset(), real.shape, real.stride()
            )
        self._copied = real, copy
        return (copy,)

    def note(self, result: Any) -> None:
        """Note what an op made of such a copy."""
        if self._copied is not None:
            self._found[_key(result)] = (result, *self._copied)
            self._copied = None

    def has(self, tensor: torch.Tensor) -> bool:
        """Whether a tensor of the tape lies in such memory."""
        return bool(self._found) and _key(tensor) in self._found

    def note_write(self, func: Any, args: Sequence[Any], kwargs: Mapping[str, Any]) -> None:
        """Note an op that writes there."""
        if not self._found or torch.Tag.inplace_view in func.tags:
            return
        for tensor in written_arguments(func, args, kwargs):
            if isinstance(tensor, torch.Tensor) and self.has(tensor):
                self._written.setdefault(_key(tensor), func.overloadpacket.__name__)

    def refuse_reached(self, arrays: Sequence[Any], name: str) -> None:
        """Refuse writes to memory that others see; what a function made itself is its own.

        Args:
            arrays: NumPy arrays, rows of bytes and the like that the function reaches.
            name: The user's function, for the message.

        Raises:
            UnsupportedError: If there was such a write.
        """
        if not self._found:
            return
        ranges = [range_ for range_ in map(_memory_of, arrays) if range_ is not None]
        with _disable_current_modes():
            self._found = {
                key: entry
                for key, entry in self._found.items()
                if any(first <= entry[1].data_ptr() < last for first, last in ranges)
            }
        for key in self._found.keys() & self._written.keys():
            raise UnsupportedError(
                f"{name} writes to memory that isn't torch's, such as a NumPy array's, by "
                f"{self._written[key]}, which no program does.",
                remedy=_REMEDY,
            )

    def refuse_given_out(self, tensor: torch.Tensor, name: str) -> None:
        """Refuse to return or keep a tensor there.

        Raises:
            UnsupportedError: If it is there.
        """
        if self.has(tensor):
            raise UnsupportedError(
                f"{name} gives out a tensor that shares memory with something that isn't one, "
                "such as a NumPy array.",
                remedy=_REMEDY,
            )

    def refuse_changed(self, name: str) -> None:
        """Refuse what was written there by others after the tensor was made.

        Raises:
            UnsupportedError: If something was.
        """
        with _disable_current_modes():
            for _, real, before in self._found.values():
                if not torch.equal(_bytes(real), _bytes(before)):
                    raise UnsupportedError(
                        f"{name} makes a tensor of memory that isn't torch's, such as a NumPy "
                        "array's, and then writes to that memory.",
                        remedy="write first, or make the tensor with torch.tensor, which copies.",
                    )


def _bytes(tensor: torch.Tensor) -> torch.Tensor:
    return tensor.contiguous().reshape(-1).view(torch.uint8)


def _memory_of(array: Any) -> tuple[int, int] | None:
    """The first address of an array's memory, and the first one after it."""
    numpy = sys.modules.get("numpy")
    if numpy is None:
        return None
    with contextlib.suppress(TypeError, ValueError, BufferError):
        found = numpy.asarray(array)
        if found.size:
            first = found.__array_interface__["data"][0]
            steps = [(n - 1) * step for n, step in zip(found.shape, found.strides, strict=True)]
            last = first + sum(max(step, 0) for step in steps) + found.itemsize
            return first + sum(min(step, 0) for step in steps), last
    return None


def _key(tensor: torch.Tensor) -> int:
    return tensor.untyped_storage()._cdata if tensor.layout is torch.strided else 0
