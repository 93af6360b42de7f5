"""What bytecode does with a name: reads it, assigns it, or only changes what is in it.

``code_names`` asks. ``self.calls += 1``, ``log.append(x)``, ``kept[k] = x`` and
``history["loss"].append(x)`` only change what is there.
"""

from __future__ import annotations

import dis
import itertools
from collections import Counter
from collections.abc import Iterator, Sequence
from typing import Any

__all__ = ["ANY_KEY", "assigned_in", "items_in", "keys_in", "looked_up_in", "read_in"]

ANY_KEY = object()  # The key that a variable is.

_ADDING = {"append", "extend", "add"}
_ASSIGNS = {"STORE_GLOBAL", "STORE_ATTR", "STORE_DEREF"}
_SIMPLE = ("LOAD_CONST", "LOAD_FAST", "LOAD_SMALL_INT", "LOAD_DEREF")
_MOVING = ("SWAP", "LOAD_FAST")
_INDEXING = ("BINARY_SUBSCR", "BINARY_OP")
_AHEAD = 16  # As many steps are looked at, behind a name, for what is done with it.


def read_in(instructions: Sequence[dis.Instruction], names: set[str]) -> Iterator[str]:
    """Names whose value matters, each wherever it does."""
    for position, item in enumerate(instructions):
        if not isinstance(item.argval, str) or item.argval not in names:
            continue
        if item.opname.startswith(("STORE_", "DELETE_", "MAKE_CELL", "LOAD_CLOSURE", "LOAD_CONST")):
            continue
        if not _only_changes(item.argval, instructions[position + 1 : position + _AHEAD]):
            yield item.argval


def looked_up_in(instructions: Sequence[dis.Instruction], names: set[str]) -> Iterator[str]:
    """Names of containers that items are got from, if only to change these."""
    for position, item in enumerate(instructions):
        following = instructions[position + 1 : position + _AHEAD]
        if item.argval not in names or not item.opname.startswith("LOAD_"):
            continue
        if _is_item(following) and following[1].opname != "STORE_SUBSCR":
            yield item.argval


def assigned_in(
    instructions: Sequence[dis.Instruction], names: set[str]
) -> tuple[set[str], set[str]]:
    """Names that get new values, and those that are counted in."""
    stores = Counter(item.argval for item in instructions if item.opname in _ASSIGNS)
    updates = Counter(
        item.argval
        for position, item in enumerate(instructions)
        if item.opname.startswith("LOAD_")
        and item.argval in names
        and _is_update(instructions[position + 1 : position + 10], "STORE_", item.argval)
    )
    return {name for name, count in stores.items() if count > updates[name]}, {*updates}


def items_in(instructions: Sequence[dis.Instruction], names: set[str]) -> tuple[set[str], set[str]]:
    """Names of containers whose items are assigned, and of those whose items are counted in."""
    assigned, counted = set[str](), set[str]()
    for position, item in enumerate(instructions):
        following = instructions[position + 1 : position + _AHEAD]
        if item.argval not in names or not item.opname.startswith("LOAD_"):
            continue
        following = _behind_keys(following)
        if _counts_in_item(following):
            counted.add(item.argval)
        if _assigns_item(following):
            assigned.add(item.argval)
    return assigned, counted


def keys_in(instructions: Sequence[dis.Instruction]) -> Iterator[Any]:
    """The keys by which items are assigned; `ANY_KEY` for those that aren't constants."""
    for before, item in itertools.pairwise(instructions):
        if item.opname == "STORE_SUBSCR":
            constant = before.opname in ("LOAD_CONST", "LOAD_SMALL_INT")
            yield before.argval if constant else ANY_KEY


def _behind_keys(following: Sequence[dis.Instruction]) -> Sequence[dis.Instruction]:
    """What is done with what simple keys lead to: with ``kept["a"]``, or ``kept`` itself."""
    while _is_looked_up(following):
        following = following[2:]
    return following


def _assigns_item(following: Sequence[dis.Instruction]) -> bool:
    """``kept[key] = value``, behind the name."""
    return _is_item(following) and following[1].opname == "STORE_SUBSCR"


def _is_item(following: Sequence[dis.Instruction]) -> bool:
    return len(following) > 1 and following[0].opname.startswith(_SIMPLE)


def _counts_in_item(following: Sequence[dis.Instruction]) -> bool:
    """``kept[key] += value``, behind the name."""
    rest = following[1:]
    if not _is_item(following) or rest[0].opname != "COPY":
        return False
    while rest and rest[0].opname == "COPY":
        rest = rest[1:]
    if not rest or rest[0].opname not in _INDEXING:
        return False
    return _is_update(rest[1:], "STORE_SUBSCR", None)


def _only_changes(name: str, following: Sequence[dis.Instruction]) -> bool:
    """Whether the value just loaded is only counted up, appended to or assigned an item of."""
    following = _behind_keys(following)  # What is in kept[key] may be all that is changed.
    if _adds(following) or _assigns_item(following) or _counts_in_item(following):
        return True
    return _is_update(following, "STORE_", name)


def _adds(following: Sequence[dis.Instruction]) -> bool:
    """Whether the next step is a method that only adds to what was loaded."""
    if not following or following[0].opname not in ("LOAD_ATTR", "LOAD_METHOD"):
        return False
    return following[0].argval in _ADDING


def _is_looked_up(following: Sequence[dis.Instruction]) -> bool:
    """Whether the next steps get an item by a simple key."""
    if not _is_item(following):
        return False
    step = following[1]
    return step.opname == "BINARY_SUBSCR" or (step.opname == "BINARY_OP" and step.argrepr == "[]")


def _is_update(following: Sequence[dis.Instruction], store: str, name: str | None) -> bool:
    """A simple operand, an operator, and the result is stored where the value came from."""
    if len(following) < 3 or not following[0].opname.startswith(_SIMPLE):
        return False
    if following[1].opname != "BINARY_OP" or following[1].argrepr[0] not in "+-":
        return False
    rest = _without_moves(following[2:])
    return bool(rest) and rest[0].opname.startswith(store) and (not name or rest[0].argval == name)


def _without_moves(following: Sequence[dis.Instruction]) -> list[dis.Instruction]:
    rest = list(following)
    while rest and rest[0].opname.startswith(_MOVING):
        rest.pop(0)
    return rest
