"""What a function asks of a ``DeviceMesh`` while it is captured; a tape makes this change.

A mesh keeps the ranks in a tensor, which it reads for each part of it (``mesh["tp"]``) and shows
(``mesh.mesh``). The tape knows nothing of that tensor, and a program has nothing to compute with
it: a part is made as no part of the program, and the ranks are numbers in it.
"""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Iterator
from typing import Any

import torch
from torch.utils._python_dispatch import _disable_current_modes, _len_torch_dispatch_stack

__all__ = ["replace", "restore"]

_MESHES, _PART, _RANKS = "torch.distributed.device_mesh", "_create_sub_mesh", "mesh"


class _Original:
    """What is replaced."""

    part: Any = None
    ranks: Any = None


def _part(mesh: Any, *args: Any, **kwargs: Any) -> Any:
    """A part of a mesh, made as no part of a program."""
    with _beside_programs():
        return _Original.part(mesh, *args, **kwargs)


def _ranks(mesh: Any) -> torch.Tensor:
    """The ranks of a mesh, as numbers where a program is recorded that reads them.

    torch reads them, too, where a function makes a mesh.
    """
    asker = str(sys._getframe(1).f_globals.get("__name__"))
    if not _len_torch_dispatch_stack() or asker.startswith("torch.distributed."):
        return _Original.ranks.fget(mesh)
    with _beside_programs():
        found = _Original.ranks.fget(mesh)
        numbers, looks = found.tolist(), {"dtype": found.dtype, "device": found.device}
    return torch.tensor(numbers, **looks)


@contextlib.contextmanager
def _beside_programs() -> Iterator[None]:
    """While nothing is recorded."""
    functions, levels = torch._C.DisableTorchFunction, torch._C._DisableFuncTorch
    with _disable_current_modes(), functions(), levels():
        yield


_SHOWN = property(_ranks)


def replace() -> None:
    """Make the change."""
    kind: Any = sys.modules[_MESHES].DeviceMesh
    if getattr(kind, _PART) is not _part:
        _Original.part, _Original.ranks = getattr(kind, _PART), getattr(kind, _RANKS)
        setattr(kind, _PART, _part)
        setattr(kind, _RANKS, _SHOWN)


def restore() -> None:
    """Take it back."""
    if _Original.part is not None:
        kind: Any = sys.modules[_MESHES].DeviceMesh
        setattr(kind, _PART, _Original.part)
        setattr(kind, _RANKS, _Original.ranks)
