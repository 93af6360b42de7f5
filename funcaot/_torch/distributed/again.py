"""Differentiate what takes tensors to ``DTensor`` as often as asked; a tape records inside of it.

Torch's backward of ``DTensor.from_local`` moves the gradient to where its input's belongs without
recording that, so a derivative of it lacks what comes by that way, without a word.
"""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Iterator
from typing import Any

from funcaot._torch.patches import require
from funcaot.scopes import SharedPatch

__all__ = ["recording_moved_gradients"]

_MODULE = "torch.distributed.tensor._api"


class _Original:
    """What is replaced."""

    backward: Any = None


def _backward(ctx: Any, grad_output: Any) -> tuple[Any, ...]:
    """What torch's computes, by operators that autograd records."""
    if grad_output is None:
        return (None,) * 7
    module = sys.modules[_MODULE]
    target = ctx.grad_placements
    if target is None:
        target = module._normalize_placements_for_grad(ctx.forward_input_placements)
    if grad_output.placements != tuple(target):
        grad_output = grad_output.redistribute(ctx.forward_input_device_mesh, target)
    return (grad_output.to_local(),) + (None,) * 6


def _replace() -> None:
    kind = sys.modules[_MODULE]._FromTorchTensor
    if kind.backward is not _backward:
        _Original.backward = kind.backward
        kind.backward = staticmethod(_backward)


def _restore() -> None:
    if _Original.backward is not None:
        sys.modules[_MODULE]._FromTorchTensor.backward = staticmethod(_Original.backward)


_patch = SharedPatch(_replace, _restore)


@contextlib.contextmanager
def recording_moved_gradients() -> Iterator[None]:
    """Let derivatives of ``DTensor.from_local`` be whole, if this process has ``DTensor``."""
    if _MODULE not in sys.modules:
        yield
        return
    require("moved gradients")
    with _patch.used():
        yield
