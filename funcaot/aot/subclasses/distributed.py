"""What a ``DTensor`` consists of, as data; ``saved`` makes it a part of a tensor's description.

Each rank writes and compares its own part, so a program for parts of other sizes is another one.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable, Iterable
from typing import Any

from funcaot._torch.distributed.described_tensors import (
    Meshes,
    dtensor_class,
    is_dtensor_class,
    mesh_of,
    metadata_data,
    metadata_from,
)
from funcaot._torch.distributed.groups import is_mesh, mesh_words
from funcaot.aot.subclasses.metadata import Outer
from funcaot.aot.subclasses.structure import Structure, structure_again

__all__ = ["meshes_in", "structure_data", "structure_from"]


def structure_data(structure: Structure, spec_data: Callable[[Any], Any]) -> Any:
    """What a wrapper consists of.

    Raises:
        LookupError: If it isn't a ``DTensor`` around a plain tensor.
    """
    plain = all(part.structure is None for part in structure.inner)
    if not is_dtensor_class(structure.kind) or not plain:
        raise LookupError("it takes tensors that wrap others")
    outer = structure.context.outer
    metadata = metadata_data(structure.context.pair)
    if not all(type(number) is int for number in (*outer.shape, *outer.stride)):
        raise LookupError("it takes DTensors of open sizes")
    return {
        "names": list(structure.names),
        "inner": list(map(spec_data, structure.inner)),
        "metadata": metadata,
        "marks": [list(mark) for mark in structure.marks],
        "attributes": sorted(structure.attributes),
        "outer": [list(outer.shape), list(outer.stride)],
    }


def structure_from(data: Any, spec_from: Callable[[Any], Any], meshes: Meshes) -> Structure:
    """What ``structure_data`` described.

    Raises:
        LookupError: If there is no such mesh.
    """
    pair, kind = metadata_from(data["metadata"], meshes), dtensor_class()
    return structure_again(
        kind,
        {name: spec_from(each) for name, each in zip(data["names"], data["inner"], strict=True)},
        pair,
        Outer(*map(tuple, data["outer"])),
        tuple((name, value) for name, value in data["marks"]),
        frozenset(data["attributes"]),
    )


def meshes_in(specs: Iterable[Any], others: Iterable[Any]) -> Meshes:
    """The meshes that a call has, by what is said of them; the first of each.

    Args:
        specs: Its tensors', with constants among them.
        others: What else it reads, or what refers to it.

    Raises:
        LookupError: If a group of a mesh is gone.
    """
    found: dict[str, Any] = {}
    for mesh in [*map(_mesh_in, specs), *map(_target, others)]:
        if is_mesh(mesh):
            found.setdefault(mesh_words(mesh), mesh)
    return found


def _mesh_in(spec: Any) -> Any:
    structure = getattr(spec, "structure", None)
    if structure is None or not is_dtensor_class(structure.kind):
        return None
    return mesh_of(structure.context.pair)


def _target(value: Any) -> Any:
    return value() if isinstance(value, weakref.ref) else value
