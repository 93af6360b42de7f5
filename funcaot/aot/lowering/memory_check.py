"""Proof that a run changed no operand but those that its graph writes to; for tests."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import Any

import torch

from funcaot._torch.levels.functorch import is_functorch_wrapped_tensor
from funcaot.aot.tape.memory.storages import missing_bytes
from funcaot.errors import GraphError

_REMEDY = 'compile with backend="eager", and please report this with the function.'
# Beyond it only versions are compared.
_LARGEST = 1 << 18


class MemoryCheck:
    """What the operands of a run were before it."""

    def __init__(self, operands: Sequence[Any], written: Collection[int]) -> None:
        """Note versions and contents.

        Args:
            operands: The operands.
            written: Positions of those that may change.
        """
        if not all(map(_has_memory, operands)):
            # What a level or a capture wraps has no memory of its own.
            operands = ()
            written = ()
        memory = {operands[position].untyped_storage().data_ptr() for position in written}
        self._before = [
            (position, operand, _version(operand), operand.clone())
            for position, operand in enumerate(operands)
            if isinstance(operand, torch.Tensor)
            and operand.layout is torch.strided
            and not operand.is_meta
            and operand.numel() <= _LARGEST
            and operand.untyped_storage().data_ptr() not in memory
        ]

    def finish(self, what: str) -> None:
        """Compare.

        Raises:
            GraphError: If an operand changed.
        """
        for position, operand, version, before in self._before:
            if _version(operand) != version or not _are_same(operand, before):
                raise GraphError(
                    f"The {what} changed its operand {position}, which it doesn't write to.",
                    remedy=_REMEDY,
                )


def _has_memory(operand: Any) -> bool:
    """Whether an operand's contents can be looked at: it is plain, and its storage wasn't freed."""
    if not isinstance(operand, torch.Tensor) or operand.layout is not torch.strided:
        return True
    if is_functorch_wrapped_tensor(operand):
        return False
    try:
        operand.untyped_storage().data_ptr()
    except RuntimeError:  # "invalid python storage": of a tensor that has none
        return False
    return not missing_bytes(operand)


def _version(tensor: torch.Tensor) -> int:
    return 0 if tensor.is_inference() else tensor._version


def _are_same(one: torch.Tensor, other: torch.Tensor) -> bool:
    if one.shape != other.shape:
        return False
    # NaN is the only value that differs from itself.
    same = (one == other) | ((one != one) & (other != other))
    return bool(same.all())
