"""Modules that code names; the names that code reads and the walk over an environment ask."""

from __future__ import annotations

import dis
from collections.abc import Sequence


def imported_in(instructions: Sequence[dis.Instruction]) -> set[str]:
    """Modules that code imports: ``..a.b`` for ``from ..a.b import c``."""
    found = set()
    for at, item in enumerate(instructions):
        if item.opname != "IMPORT_NAME":
            continue
        level, members = (each.argval for each in instructions[at - 2 : at])
        name = "." * level + str(item.argval)
        found.add(name)
        if not item.argval:  # ``from . import c``: a name in the package or a module of it
            found |= {name + member for member in members or ()}
    return found


def is_dotted(text: str) -> bool:
    """Whether a text may be the name of a module."""
    return all(map(str.isidentifier, text.lstrip(".").split(".")))


def in_package(name: str, package: str) -> tuple[str, ...]:
    """Full names of modules that a name may mean in a module of a package."""
    rest = name.lstrip(".")
    dots = len(name) - len(rest)
    if not dots:
        return name, f"{package}.{name}"
    parents = package.split(".")
    known = parents[: len(parents) - dots + 1]
    return (".".join([*known, rest] if rest else known),) if known and package else ()
