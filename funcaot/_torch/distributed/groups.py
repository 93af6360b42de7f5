"""Process groups as text that another process understands, and found again there by it.

Torch names groups by counting what a process has made, or by a digest in which such a count is. So
a name says nothing elsewhere. What does: which ranks of the whole are in a group, by what they
send, and for groups that are alike in this, which of them it is, in the order in which all of their
ranks made them.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from typing import Any, TypeAlias

import torch.distributed as dist

__all__ = [
    "GroupData",
    "described_group",
    "found_group",
    "is_group",
    "is_mesh",
    "mesh_words",
    "words",
]

# Ranks, the backend, and how many groups before it are alike; -1 for the default group.
GroupData: TypeAlias = list[Any]


def is_group(thing: Any) -> bool:
    """Whether something is a process group."""
    return dist.is_available() and isinstance(thing, dist.ProcessGroup)


def is_mesh(thing: Any) -> bool:
    """Whether something is a mesh of ranks."""
    module = sys.modules.get("torch.distributed.device_mesh")
    return module is not None and isinstance(thing, module.DeviceMesh)


def mesh_words(mesh: Any) -> str:
    """A mesh, with the groups of this rank along its dimensions, and the one that it is a part of.

    Raises:
        LookupError: If a group of it is gone.
    """
    names, root = mesh.mesh_dim_names, mesh._get_root_mesh()
    own = mesh._coordinate_on_dim is not None and hasattr(mesh, "_dim_group_names")
    groups = [words(described_group(name)) for name in mesh._dim_group_names] if own else []
    flat = sorted(f"{name} {mesh_words(part)}" for name, part in mesh._flatten_mapping.items())
    said = f"{mesh.device_type} mesh {mesh.mesh.tolist()} {names} of {groups} with {flat}"
    return said if root is mesh or root is None else f"{said} in {mesh_words(root)}"


def described_group(group: Any) -> GroupData:
    """What is said of a group, or of the one that has a name.

    Raises:
        LookupError: If this process has no such group.
    """
    for known, data in _groups():
        if known is group or (isinstance(group, str) and known.group_name == group):
            return data
    raise LookupError("it waits for a group of ranks that is gone")


def found_group(data: GroupData) -> str:
    """The name that this process has for a group.

    Raises:
        LookupError: If it has no such group.
    """
    for known, described in _groups():
        if described == data:
            return str(known.group_name)
    raise LookupError(f"it waits for {words(data)}, which there isn't in this process")


def words(data: GroupData) -> str:
    """A group, for a message."""
    ranks, backend, before = data
    listed = ", ".join(map(str, ranks))
    if before < 0:
        return f"the default group of the ranks {listed} that sends by {backend}"
    number = f", number {before + 1} of such groups" if before else ""
    return f"a group of the ranks {listed} that sends by {backend}{number}"


def _groups() -> Iterator[tuple[Any, GroupData]]:
    """The groups of this process, in the order in which they were made."""
    if not (dist.is_available() and dist.is_initialized()):
        return
    world: Any = dist.distributed_c10d._world
    default = world.default_pg
    alike: dict[tuple[Any, ...], int] = {}
    for group, (backend, _) in list(world.pg_map.items()):
        ranks = _ranks(world, group)
        if group is default:
            yield group, [list(ranks), str(backend), -1]
            continue
        key = (ranks, str(backend))
        before = alike.get(key, 0)
        alike[key] = before + 1
        yield group, [list(ranks), str(backend), before]


def _ranks(world: Any, group: Any) -> tuple[int, ...]:
    places = world.pg_group_ranks[group]
    in_order: Callable[[int], int] = places.__getitem__
    return tuple(sorted(places, key=in_order))
