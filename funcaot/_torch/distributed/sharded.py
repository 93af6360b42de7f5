"""Private names of ``DTensor``: what it holds, and one made of what this rank has."""

from __future__ import annotations

from typing import Any

import torch
import torch.distributed as dist
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.distributed.tensor import DTensor, Replicate, Shard, distribute_tensor

__all__ = [
    "DTensor",
    "DeviceMesh",
    "distributed",
    "group_of",
    "is_distributed",
    "is_part",
    "local",
    "mesh_of_all",
    "of_local",
    "rank_of",
    "spec_of",
]


def is_distributed(tensor: Any) -> bool:
    """Whether a tensor is a ``DTensor``, in a capture too."""
    return hasattr(tensor, "_spec")


def is_part(tensor: Any) -> bool:
    """Whether it is one as `distributed` makes it."""
    if not is_distributed(tensor):
        return False
    expected = Shard(0) if tensor._spec.shape else Replicate()
    return tensor._spec.placements == (expected,)  # type: ignore[no-any-return]


def spec_of(tensor: Any) -> Any:
    """Mesh, placements and the metadata of the whole."""
    return tensor._spec


def local(tensor: Any) -> torch.Tensor:
    """What this rank has of it; autograd sees the ``DTensor`` only."""
    return tensor._local_tensor  # type: ignore[no-any-return]


def of_local(part: torch.Tensor, spec: Any) -> Any:
    """The ``DTensor`` of which this rank has a part."""
    return DTensor(part, spec, requires_grad=False)  # type: ignore[call-arg]


def group_of(spec: Any) -> tuple[int, str]:
    """How many ranks there are, and the name of their group."""
    mesh = spec.mesh
    return mesh.size(), mesh.get_group().group_name


def rank_of(spec: Any) -> int:
    """The number of this rank among them."""
    return spec.mesh.get_local_rank()  # type: ignore[no-any-return]


def distributed(tensor: torch.Tensor, mesh: DeviceMesh) -> DTensor:
    """Rank 0's values, cut along the first dimension; a scalar is whole on every rank."""
    return distribute_tensor(tensor, mesh, [Shard(0) if tensor.dim() else Replicate()])


def mesh_of_all(device: str) -> DeviceMesh:
    """The mesh of all ranks, in one dimension."""
    return init_device_mesh(device, (dist.get_world_size(),))
