"""Fake tensors that look like others but for one thing, made outside of every mode."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch._subclasses.fake_tensor import FakeTensor
from torch.utils._python_dispatch import _disable_current_modes

__all__ = ["fake_like", "fake_strided", "is_fake"]


def is_fake(value: torch.Tensor) -> bool:
    """Whether a value of a graph is a fake tensor itself, and no wrapper of a level around one."""
    return isinstance(value, FakeTensor)


def fake_like(value: FakeTensor, dtype: torch.dtype) -> torch.Tensor:
    """A fake tensor of the same shape and layout in another dtype."""
    with _disable_current_modes(), value.fake_mode:
        return torch.empty_like(value, dtype=dtype, requires_grad=False)


def fake_strided(value: FakeTensor, stride: Sequence[int]) -> torch.Tensor:
    """A fake tensor of the same shape with other strides."""
    with _disable_current_modes(), value.fake_mode:
        return torch.empty_strided(value.shape, stride, dtype=value.dtype, device=value.device)
