"""Fake tensors that look like others but for one thing, made outside of every mode."""

from __future__ import annotations

import weakref
from collections.abc import Sequence
from typing import Any

import torch
from torch._subclasses.fake_tensor import (
    FakeTensor,
    FakeTensorMode,
    should_allow_numbers_as_tensors,
)
from torch.utils import _pytree as pytree
from torch.utils._python_dispatch import _disable_current_modes

from funcaot._torch.tracing.tracing_errors import MIXED

__all__ = ["fake_like", "fake_strided", "is_fake", "run_alone", "sparing_real_tensors"]


def is_fake(value: Any) -> bool:
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


def run_alone(op: Any, args: Any, kwargs: Any, mode: FakeTensorMode) -> Any:
    """What an op returns for fake tensors, in their mode and in no other one."""
    with _disable_current_modes():
        return mode.dispatch(op, (FakeTensor,), args, kwargs)


def sparing_real_tensors(mode: FakeTensorMode) -> FakeTensorMode:
    """The mode, which computes nothing with tensors that aren't fake.

    It takes arithmetic of real tensors and numbers (``counter.add_(1)``) for constants, runs it,
    and then refuses the tensor.
    """
    # A mode that refers to itself would live, with all it knows, until garbage is collected.
    dispatch, itself = type(mode).dispatch, weakref.ref(mode)

    def spared(func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        mode = itself()
        assert mode is not None  # it calls this
        kwargs = kwargs or {}
        if should_allow_numbers_as_tensors(func):
            leaves = pytree.tree_leaves((args, kwargs))
            tensors = [leaf for leaf in leaves if isinstance(leaf, torch.Tensor)]
            if tensors and not any(isinstance(tensor, FakeTensor) for tensor in tensors):
                if not mode.allow_non_fake_inputs:
                    raise AssertionError(f"{MIXED}. Found in {func}.")
                args, kwargs = pytree.tree_map_only(torch.Tensor, mode.from_tensor, (args, kwargs))
        return dispatch(mode, func, types, args, kwargs)

    mode.dispatch = spared  # type: ignore[method-assign]
    return mode
