"""What a function may change besides tensors: attributes, items, closure variables, globals.

All of it is looked at before a capture, compared after it, and put back where it was.
"""

from __future__ import annotations

import types
from collections import deque
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from funcaot.aot.code_names import names_of
from funcaot.aot.environment import MODULE_OWN, Environment, is_compiled

MISSING: Any = object()
_CELL = "cell_contents"


@dataclass(frozen=True, eq=False)
class Bag:
    """Something mutable that the function reaches, and what was in it.

    Attributes:
        holder: What it belongs to, or itself, by ``id``.
        access: Source text on ``{parent}``, the holder.
        thing: A dictionary, list, deque, set or cell of a closure.
        before: What was in it: a dictionary for dictionaries and cells, else a tuple.
        names: For the globals of a function, the names that it uses.
        named: Whether its keys are names that code uses.
    """

    holder: int
    access: str
    thing: Any
    before: dict[Any, Any] | tuple[Any, ...]
    names: frozenset[str] | None = None
    named: bool = False

    def now(self) -> dict[Any, Any] | tuple[Any, ...]:
        """What is in it."""
        return _contents(self.thing, self.names)


def bags_of(environment: Environment) -> list[Bag]:
    """Everything mutable in an environment, each thing once."""
    found: list[Bag] = []
    seen: set[int] = set()
    known_globals: dict[int, frozenset[str]] = {}
    for identity, holder in environment.objects.items():
        for access, thing, named in _things(holder):
            names = None
            if isinstance(holder, types.FunctionType) and thing is holder.__globals__:
                known = known_globals.get(id(thing), frozenset())
                names = names_of(holder.__code__).used - known
                known_globals[id(thing)] = known | names
            elif id(thing) in seen:
                continue
            seen.add(id(thing))
            before = _contents(thing, names)
            found.append(Bag(identity, access, thing, before, names, named))
    return found


def _things(holder: Any) -> Iterator[tuple[str, Any, bool]]:
    if isinstance(holder, torch.nn.Module):
        for name in ("_parameters", "_buffers", "_modules"):
            yield f"{{parent}}.{name}", vars(holder)[name], True
        yield "{parent}.__dict__", vars(holder), True
    elif isinstance(holder, types.FunctionType):
        for index, cell in enumerate(holder.__closure__ or ()):
            yield f"{{parent}}.__closure__[{index}]", cell, True
        yield "{parent}.__globals__", holder.__globals__, True
    elif isinstance(holder, dict | list | deque | set):
        yield "{parent}", holder, False
    elif isinstance(holder, tuple | types.MethodType | torch.Tensor) or is_compiled(holder):
        return
    elif hasattr(holder, "__dict__") and isinstance(vars(holder), dict):
        yield "{parent}.__dict__", vars(holder), True


def _contents(thing: Any, names: frozenset[str] | None) -> dict[Any, Any] | tuple[Any, ...]:
    if isinstance(thing, types.CellType):
        try:
            return {_CELL: thing.cell_contents}
        except ValueError:
            return {}
    if not isinstance(thing, dict):
        return tuple(thing)
    if names is not None:
        return {name: thing[name] for name in names if name in thing}
    return dict(thing)


def name_of(bag: Bag, key: Any, environment: Environment) -> str:
    """The name by which code uses an entry of a bag; empty if it has none."""
    if isinstance(bag.thing, types.CellType):
        code = environment.objects[bag.holder].__code__
        return code.co_freevars[int(bag.access.split("[")[1].rstrip("]"))]
    return key if bag.named and isinstance(key, str) else ""


def changed_keys(bag: Bag) -> list[Any]:
    """Keys of a dictionary or cell whose values aren't what they were, new ones last."""
    before, now = bag.before, bag.now()
    if not (isinstance(before, dict) and isinstance(now, dict)):
        raise TypeError("a sequence has no keys")
    keys = [key for key in before if key not in now or now[key] is not before[key]]
    keys += [key for key in now if key not in before]
    own = MODULE_OWN if bag.access == "{parent}.__dict__" else ()
    return [key for key in keys if key not in own]


def put(thing: Any, key: Any, value: Any) -> None:
    """Set or, for ``MISSING``, remove an entry of a dictionary or a cell."""
    if isinstance(thing, types.CellType):
        if value is MISSING:
            del thing.cell_contents
        else:
            thing.cell_contents = value
    elif value is MISSING:
        thing.pop(key, None)
    else:
        thing[key] = value


def fill(thing: Any, contents: Sequence[Any]) -> None:
    """Replace what is in a list, deque or set; in a dictionary, by pairs."""
    if isinstance(thing, list):
        thing[:] = contents
        return
    thing.clear()
    thing.extend(contents) if isinstance(thing, deque) else thing.update(contents)


def is_reordered(before: dict[Any, Any], now: dict[Any, Any]) -> bool:
    """Whether the order of a dictionary isn't the old one with new keys behind."""
    kept = [key for key in before if key in now]
    return [*now] != kept + [key for key in now if key not in before]
