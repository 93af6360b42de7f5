"""What a ``DTensor`` consists of, as data; ``codec`` makes it a part of a tensor's description.

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
from funcaot.aot.graph.tensor_spec import TensorSpec
from funcaot.aot.saved.errors import (
    NotSavedError,
    missing_is_not_loaded,
    missing_is_not_saved,
)
from funcaot.aot.subclasses.metadata import Outer
from funcaot.aot.subclasses.structure import Structure, structure_again


def structure_data(structure: Structure, spec_data: Callable[[TensorSpec], Any]) -> Any:
    """What a wrapper consists of.

    Raises:
        NotSavedError: If it isn't a ``DTensor`` around a plain tensor.
    """
    plain = all(part.structure is None for part in structure.inner)
    if not is_dtensor_class(structure.kind) or not plain:
        raise NotSavedError("it takes tensors that wrap others")
    outer = structure.context.outer
    with missing_is_not_saved():
        metadata = metadata_data(structure.context.pair)
    if not all(type(number) is int for number in (*outer.shape, *outer.stride)):
        raise NotSavedError("it takes DTensors of open sizes")
    return {
        "names": list(structure.names),
        "inner": list(map(spec_data, structure.inner)),
        "metadata": metadata,
        "marks": [list(mark) for mark in structure.marks],
        "attributes": sorted(structure.attributes),
        "outer": [list(outer.shape), list(outer.stride)],
    }


def structure_from(data: Any, spec_from: Callable[[Any], TensorSpec], meshes: Meshes) -> Structure:
    """What ``structure_data`` described.

    Raises:
        NotLoadedError: If there is no such mesh.
    """
    with missing_is_not_loaded():
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
    """
    found: dict[str, Any] = {}
    for mesh in [*map(_mesh_in, specs), *map(_target, others)]:
        if is_mesh(mesh):
            with missing_is_not_loaded():
                found.setdefault(mesh_words(mesh), mesh)
    return found


def _mesh_in(spec: Any) -> Any:
    structure = spec.structure if isinstance(spec, TensorSpec) else None
    if structure is None or not is_dtensor_class(structure.kind):
        return None
    return mesh_of(structure.context.pair)


def _target(value: Any) -> Any:
    return value() if isinstance(value, weakref.ref) else value
