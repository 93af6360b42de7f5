"""Classes of tensors that say what torch's functions do; asked where inputs are entered."""

from __future__ import annotations

import functools

import torch

__all__ = ["has_own_functions"]

_USUAL = torch.Tensor.__torch_function__.__func__  # type: ignore[attr-defined]
_NONE = torch._C._disabled_torch_function_impl


@functools.cache
def has_own_functions(kind: type) -> bool:
    """Whether a user's class of tensors has a ``__torch_function__`` of its own.

    Traced tensors stand for those of a call, and don't have it.
    """
    if kind.__module__.startswith("torch."):
        return False
    own = kind.__torch_function__  # type: ignore[attr-defined]
    return getattr(own, "__func__", own) not in (_USUAL, _NONE)
