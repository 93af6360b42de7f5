"""What a ``DTensor`` is besides its part of the numbers, as plain data, and made again of that.

The mesh is said in words; a process that makes one again has a mesh of its own for these.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping
from typing import Any, TypeAlias

import torch

from funcaot._torch.distributed.groups import mesh_words

__all__ = [
    "Meshes",
    "dtensor_class",
    "is_dtensor_class",
    "is_placement",
    "mesh_of",
    "metadata_data",
    "metadata_from",
    "placement_data",
]

# Meshes of this process by what is said of them.
Meshes: TypeAlias = Mapping[str, Any]
# What ``DTensor.__tensor_flatten__`` gives, with what it names besides tensors.
_Metadata: TypeAlias = tuple[Any, dict[str, Any]]

_TENSOR, _MESH = "torch.distributed.tensor", "device_mesh"


def dtensor_class() -> type:
    """The class.

    Raises:
        LookupError: If nobody has imported it.
    """
    module = sys.modules.get(_TENSOR)
    if module is None:
        raise LookupError("it takes DTensors, which this process hasn't imported")
    found: type = module.DTensor
    return found


def is_dtensor_class(kind: type) -> bool:
    """Whether a class is ``DTensor`` itself."""
    module = sys.modules.get(_TENSOR)
    return module is not None and kind is module.DTensor


def mesh_of(metadata: _Metadata) -> Any:
    """The mesh that a ``DTensor`` is on."""
    return metadata[1][_MESH]


def metadata_data(metadata: _Metadata) -> Any:
    """The metadata of a ``DTensor``.

    Raises:
        LookupError: If a part of it has no description.
    """
    (placements, tensor, order, requires_grad), others = metadata
    if [*others] != [_MESH]:
        raise LookupError("a DTensor holds more than a mesh")
    if not all(type(number) is int for number in (*tensor.shape, *tensor.stride)):
        raise LookupError("it takes DTensors of open sizes")
    return {
        "mesh": mesh_words(others[_MESH]),
        "placements": list(map(placement_data, placements)),
        "shape": list(tensor.shape),
        "stride": list(tensor.stride),
        "dtype": str(tensor.dtype).removeprefix("torch."),
        "order": None if order is None else [[dim, list(dims)] for dim, dims in order],
        "requires_grad": bool(requires_grad),
    }


def metadata_from(data: Any, meshes: Meshes) -> _Metadata:
    """The metadata that ``metadata_data`` described.

    Raises:
        LookupError: If there is no such mesh.
    """
    module: Any = sys.modules.get(f"{_TENSOR}._dtensor_spec")
    mesh = meshes.get(data["mesh"])
    if module is None or mesh is None:
        raise LookupError(f"it makes a DTensor on a mesh that isn't given to it: {data['mesh']}")
    dtype = getattr(torch, data["dtype"])
    if not isinstance(dtype, torch.dtype):
        raise LookupError(f"torch.{data['dtype']} is no element type")
    tensor = module.TensorMeta(torch.Size(data["shape"]), tuple(data["stride"]), dtype)
    order = data["order"]
    if order is not None:
        order = tuple(module.ShardOrderEntry(dim, tuple(dims)) for dim, dims in order)
    placements = tuple(map(_placement_from, data["placements"]))
    return (placements, tensor, order, data["requires_grad"]), {_MESH: mesh}


def is_placement(thing: Any) -> bool:
    """Whether something says how a ``DTensor`` is cut."""
    module = sys.modules.get(_TENSOR)
    return module is not None and isinstance(thing, module.Placement)


def placement_data(placement: Any) -> list[Any]:
    """How a ``DTensor`` is cut along one dimension of a mesh.

    Raises:
        LookupError: If it is cut in a way of its own.
    """
    module, kind = sys.modules[_TENSOR], type(placement)
    if kind is module.Replicate:
        return ["replicate"]
    if kind is module.Shard:
        return ["shard", placement.dim]
    if kind is module.Partial and type(placement.reduce_op) is str:
        return ["partial", placement.reduce_op]
    raise LookupError(f"a DTensor is placed by {kind.__name__}")


def _placement_from(data: list[Any]) -> Any:
    module, (name, *given) = sys.modules[_TENSOR], data
    return {"replicate": module.Replicate, "shard": module.Shard, "partial": module.Partial}[name](
        *given
    )
