"""How a tensor looks at the memory of another one: `opaque` describes results of a Function so.

``x.detach()`` and ``torch.from_numpy(x.numpy())`` change with ``x``, whether autograd knows them as
its views or not.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch

from funcaot._torch.levels.functorch import is_functorch_wrapped_tensor

__all__ = ["View", "is_plain", "reach"]

_PLAIN = (torch.Tensor, torch.nn.Parameter)


@dataclass(frozen=True)
class View:
    """How a tensor looks at another one's memory.

    Attributes:
        shape: Its shape.
        strides: Its strides.
        start: Where it begins, in elements from where the other one does.
    """

    shape: tuple[int, ...]
    strides: tuple[int, ...]
    start: int

    @classmethod
    def of_memory(cls, tensor: torch.Tensor, other: torch.Tensor) -> View | None:
        """How a tensor looks at another one's memory; None if it doesn't, or sees more of it."""
        if (tensor.dtype, tensor.device) != (other.dtype, other.device) or not tensor.numel():
            return None
        start, rest = divmod(tensor.data_ptr() - other.data_ptr(), tensor.element_size())
        seen = cls(tuple(tensor.shape), tensor.stride(), start)
        return None if rest or start < 0 or not seen.fits(other) else seen

    def fits(self, other: torch.Tensor) -> bool:
        """Whether another tensor, as it lies, has the memory that is looked at."""
        steps = zip(self.shape, self.strides, strict=True)
        return self.start + sum((n - 1) * step for n, step in steps) < reach(other)

    def of(self, other: torch.Tensor) -> torch.Tensor:
        """The tensor, of the other one; no derivative passes between them."""
        start = other.storage_offset() + self.start
        return other.detach().as_strided(self.shape, self.strides, start)


def is_plain(value: Any) -> bool:
    """Whether something is a tensor with memory that its strides describe, and without a level."""
    return (
        type(value) in _PLAIN
        and value.layout is torch.strided
        and value.device.type != "meta"
        and not (is_functorch_wrapped_tensor(value) or value.is_conj() or value.is_neg())
    )


def reach(tensor: torch.Tensor) -> int:
    """How many elements of memory there are from a tensor's first to its last."""
    if not tensor.numel():
        return 0
    return 1 + sum((n - 1) * step for n, step in zip(tensor.shape, tensor.stride(), strict=True))
