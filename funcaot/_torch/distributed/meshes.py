"""Parts of a ``DeviceMesh`` that a function takes while it is captured; a tape makes this change.

A mesh keeps the ranks in a tensor, which it reads for each part of it (``mesh["tp"]``). The tape
knows nothing of that tensor, and a program has nothing to compute with it.
"""

from __future__ import annotations

import sys
from typing import Any

import torch
from torch.utils._python_dispatch import _disable_current_modes

__all__ = ["replace", "restore"]

_MESHES, _PART = "torch.distributed.device_mesh", "_create_sub_mesh"


class _Original:
    """What is replaced."""

    part: Any = None


def _part(mesh: Any, *args: Any, **kwargs: Any) -> Any:
    """A part of a mesh, made as no part of a program."""
    functions, levels = torch._C.DisableTorchFunction, torch._C._DisableFuncTorch
    with _disable_current_modes(), functions(), levels():
        return _Original.part(mesh, *args, **kwargs)


def replace() -> None:
    """Make the change."""
    kind: Any = sys.modules[_MESHES].DeviceMesh
    if getattr(kind, _PART) is not _part:
        _Original.part = getattr(kind, _PART)
        setattr(kind, _PART, _part)


def restore() -> None:
    """Take it back."""
    if _Original.part is not None:
        setattr(sys.modules[_MESHES].DeviceMesh, _PART, _Original.part)
