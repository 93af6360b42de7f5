"""Record what ``DTensor`` does, also for other sizes and higher orders; a tape enters it.

Torch's backward of ``DTensor.from_local`` moves the gradient to where its input's belongs without
recording that, so a derivative of it lacks what comes by that way, without a word. And it takes
the sizes that a tape was made with for those of the call, where it pads parts to be as large.
And it reads numbers of tensors that it computes from sizes: each would be looked at in every call.
What it chooses by sizes stands in ``choices``.
"""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Iterator
from typing import Any

import torch

from funcaot._torch.distributed import choices, meshes
from funcaot._torch.patches import require
from funcaot.base.scopes import SharedPatch

__all__ = ["recording_distributed_tensors"]

_MODULE = "torch.distributed.tensor._api"
_PLACEMENTS = "torch.distributed.tensor.placement_types"


class _Original:
    """What is replaced."""

    backward: Any = None
    even: Any = None
    strided: Any = None


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


def _even(size: Any, num_chunks: Any) -> bool:
    """Whether parts are as large as each other, for the call that is traced."""
    numbers = [value for value in (size, num_chunks) if isinstance(value, torch.SymInt)]
    if numbers:
        from funcaot._torch.tensors.sizes.size_environment import SizeEnvironment

        if any(isinstance(value.node.shape_env, SizeEnvironment) for value in numbers):
            return bool(size % num_chunks == 0)
    return _Original.even(size, num_chunks)


def _strided(self: Any, *args: Any, **kwargs: Any) -> Any:
    """How much a rank has of what is cut in strides, without a trace of how that is computed."""
    if any(isinstance(number, torch.SymInt) for number in (*args, *kwargs.values())):
        return _Original.strided(self, *args, **kwargs)
    from torch.utils._python_dispatch import _disable_current_modes

    with _disable_current_modes(), torch._C._DisableFuncTorch():
        return _Original.strided(self, *args, **kwargs)


def _replace() -> None:
    placements: Any = sys.modules[_PLACEMENTS]
    strided = placements._StridedShard
    if strided.local_shard_size_and_offset is not _strided:
        _Original.strided = strided.local_shard_size_and_offset
        strided.local_shard_size_and_offset = _strided
    if placements._hint_proves_even_shard is not _even:
        _Original.even = placements._hint_proves_even_shard
        placements._hint_proves_even_shard = _even
    choices.replace()
    meshes.replace()
    kind = sys.modules[_MODULE]._FromTorchTensor
    if kind.backward is not _backward:
        _Original.backward = kind.backward
        kind.backward = staticmethod(_backward)


def _restore() -> None:
    choices.restore()
    meshes.restore()
    placements: Any = sys.modules[_PLACEMENTS]
    if _Original.even is not None:
        placements._hint_proves_even_shard = _Original.even
    if _Original.strided is not None:
        placements._StridedShard.local_shard_size_and_offset = _Original.strided
    if _Original.backward is not None:
        sys.modules[_MODULE]._FromTorchTensor.backward = staticmethod(_Original.backward)


_patch = SharedPatch(_replace, _restore, lasts=True)


@contextlib.contextmanager
def recording_distributed_tensors() -> Iterator[None]:
    """The changes are made inside, if this process has ``DTensor``."""
    if _MODULE not in sys.modules:
        yield
        return
    require("distributed tensors")
    with _patch.used():
        yield
