"""Tensors that functions and objects hold, taken out and put back; custom rules call this.

No level and no tape can look into a closure. So the tensors that it holds are found and become
operands of a Function; wherever the function runs, it's a copy that holds what the level sees.
"""

from __future__ import annotations

import functools
import types
from collections import defaultdict, deque
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import Any

import torch

from funcaot.classes.kept_values import are_same
from funcaot.errors import UnsupportedError
from funcaot.rules.operands.closure_parts import may_hold, parts_of, seal_of
from funcaot.rules.operands.copied_writes import (
    COPIED,
    CopiedGlobals,
    Original,
    Writes,
    original_of,
    refresh,
)
from funcaot.rules.operands.reached import held_in_slots

__all__ = ["Hollow", "Sealed", "hollowed", "tensors_on_the_way"]

_MOST = 1_000_000
_NOTHING = object()
_OWN_NEW = (dict, list, deque, types.SimpleNamespace)
_Parts = Callable[[Any], Iterator[tuple[str, Any]]]
_Note = Callable[[Iterable[types.FunctionType], Iterable[str]], None]


@dataclass(frozen=True, eq=False)
class _Hole:
    """Stands where a tensor was taken out."""

    index: int


class _Method:
    """Stands for a method of a tensor that was taken out."""

    def __init__(self, owner: _Hole, name: str) -> None:
        self.__self__, self.__name__ = owner, name


class Sealed(UnsupportedError):
    """A tensor was found where it can't be taken out."""


@dataclass(frozen=True, eq=False)
class Hollow:
    """Functions and objects without the tensors that were taken out of them.

    Attributes:
        roots: The values, copied where something below them was taken out.
        copies: What was copied, by ``id``.
        originals: For each copied object the user's, by ``id`` of the copy.
    """

    roots: tuple[Any, ...]
    copies: frozenset[int]
    originals: dict[int, Original]

    def filled(
        self,
        tensors: Iterable[Any],
        written: list[Writes] | None = None,
        *,
        later: bool = False,
    ) -> tuple[Any, ...]:
        """The values with other tensors in the places of those taken out.

        Args:
            tensors: The tensors.
            written: Takes what sees what is assigned to copies afterwards.
            later: Whether what else the originals hold is that of now. A forward may run again
                while it is traced, and then begins with what it was called with.
        """
        given = tuple(tensors)
        if not self.copies:
            return self.roots

        def put(value: Any) -> Any:
            return given[value.index] if isinstance(value, _Hole) else _NOTHING

        copier = _Copier(self.copies, put)
        roots = copier.copies_of(self.roots)[0]
        if written is not None:
            for hollow, made in copier.objects:
                original = self.originals.get(id(hollow))
                if original is not None:
                    if later:
                        refresh(hollow, made, original)
                    written.append(Writes.to(made, original))
        return roots

    def is_same_as(self, other: Hollow) -> bool:
        """Whether a rule can't tell these values from those of another call, but for tensors."""
        return self._alike(self.roots, other.roots, set())

    def _alike(self, one: Any, other: Any, seen: set[tuple[int, int]]) -> bool:
        if id(one) not in self.copies:
            return are_same(one, other)
        if (id(one), id(other)) in seen:
            return True
        seen.add((id(one), id(other)))
        if type(one) is not type(other):
            return False
        if getattr(one, "__code__", None) is not getattr(other, "__code__", None):
            return False
        parts = list(parts_of(one)), list(parts_of(other))
        return len(parts[0]) == len(parts[1]) and all(
            name == known and self._alike(value, beside, seen)
            for (name, value), (known, beside) in zip(*parts, strict=True)
        )

    def let_go(self) -> None:
        """Let go of lists and dictionaries of the user's: the function has run."""
        for key in [key for key, original in self.originals.items() if original.is_held]:
            del self.originals[key]


def hollowed(
    roots: tuple[Any, ...],
    wanted: Callable[[torch.Tensor], bool],
    note: _Note | None = None,
    parts: _Parts = parts_of,
) -> tuple[Hollow, tuple[torch.Tensor, ...], tuple[str, ...]]:
    """Take tensors out of values.

    Args:
        roots: Functions, containers, objects.
        wanted: Which tensors.
        note: Takes the functions among what holds them, and the names on the way to them.
        parts: What a value holds, with names.

    Returns:
        The values without these, the tensors, and what the variable was called that held each.

    Raises:
        Sealed: One is held by what can't be copied.
    """
    graph = _Graph(roots, wanted, parts)
    if not graph.found:
        return Hollow(roots, frozenset(), {}), (), ()
    order = {key: _Hole(index) for index, key in enumerate(graph.found)}

    def take(value: Any) -> Any:
        return order.get(id(value), _NOTHING) if isinstance(value, torch.Tensor) else _NOTHING

    affected = graph.affected()
    for key in affected:
        sealed = seal_of(graph.values[key])
        if sealed is not None:
            raise Sealed(
                f"{graph.names[key]}, which a custom rule closes over, is {sealed}, and depends "
                "on a tensor that a transform in progress looks at.",
                remedy="pass the tensor as an argument; call torch.func.vjp inside.",
            )
    copier = _Copier(affected, take)
    copied, ids = copier.copies_of(roots)
    originals = {
        id(made): ref for value, made in copier.objects if (ref := original_of(value)) is not None
    }
    if note is not None:
        graph.tell(note, affected)
    found = graph.found.values()
    return (
        Hollow(copied, ids, originals),
        tuple(t for t, _ in found),
        tuple(name for _, name in found),
    )


def tensors_on_the_way(
    roots: tuple[Any, ...], wanted: Callable[[torch.Tensor], bool], note: _Note
) -> tuple[torch.Tensor, ...]:
    """Find tensors in values, which stay as they are.

    Args:
        roots: Functions, containers, objects.
        wanted: Which tensors.
        note: Takes the functions among what holds them, and the names on the way to them.
    """
    graph = _Graph(roots, wanted, parts_of)
    if graph.found:
        graph.tell(note, graph.affected())
    return tuple(tensor for tensor, _ in graph.found.values())


class _Graph:
    """What values reach, nearest first.

    Attributes:
        found: The wanted tensors with the names of what held them, by ``id``.
        values: Everything else that was looked into, by ``id``; kept alive by this.
        names: What each was called.
    """

    def __init__(
        self, roots: tuple[Any, ...], wanted: Callable[[torch.Tensor], bool], parts: _Parts
    ) -> None:
        self.found: dict[int, tuple[torch.Tensor, str]] = {}
        self.values: dict[int, Any] = {id(roots): roots}
        self.names: dict[int, str] = {id(roots): "an argument"}
        self._holders: dict[int, list[int]] = {}
        queue = deque([roots])
        while queue:
            if len(self.values) > _MOST:
                raise Sealed(
                    f"A custom rule closes over more than {_MOST} objects, in which tensors would "
                    "have to be looked for.",
                    remedy="pass what it needs as arguments.",
                )
            holder = queue.popleft()
            for name, value in parts(holder):
                self._look(holder, name, value, wanted, queue)

    def _look(self, holder: Any, name: str, value: Any, wanted: Any, queue: deque[Any]) -> None:
        if isinstance(value, torch.Tensor):
            if id(value) in self.found or wanted(value):
                self.found.setdefault(id(value), (value, name or self.names[id(holder)]))
                self._holders.setdefault(id(value), []).append(id(holder))
        elif may_hold(value):
            self._holders.setdefault(id(value), []).append(id(holder))
            if id(value) not in self.values:
                self.values[id(value)] = value
                self.names[id(value)] = name or self.names[id(holder)]
                queue.append(value)

    def affected(self) -> frozenset[int]:
        """What holds a wanted tensor, however indirectly."""
        reached: set[int] = set()
        pending = list(self.found)
        while pending:
            for holder in self._holders.get(pending.pop(), ()):
                if holder not in reached:
                    reached.add(holder)
                    pending.append(holder)
        return frozenset(reached)

    def tell(self, note: _Note, affected: frozenset[int]) -> None:
        """Note functions that hold a wanted tensor, the names of all that do, and its own."""
        holders = [self.values[key] for key in affected]
        texts = [*(self.names[key] for key in affected), *(name for _, name in self.found.values())]
        names = filter(str.isidentifier, ", ".join(texts).split(", "))
        note([each for each in holders if isinstance(each, types.FunctionType)], {*names})


class _Copier:
    """Copies what is affected; everything else stays the object that it is.

    Attributes:
        objects: What can be written to (objects, functions, globals, containers), and the copies.
    """

    def __init__(self, affected: frozenset[int], replace: Callable[[Any], Any]) -> None:
        self._affected, self._replace = affected, replace
        self._memo: dict[int, Any] = {}
        self._hollows: list[tuple[Hollow, Hollow]] = []
        self.objects: list[tuple[Any, Any]] = []

    def copies_of(self, roots: tuple[Any, ...]) -> tuple[tuple[Any, ...], frozenset[int]]:
        """The copies of values, and the ids of everything that was copied."""
        copied = tuple(self._copy(value) for value in roots)
        for hollow, made in self._hollows:
            ids = [id(self._memo[key]) if key in self._memo else key for key in hollow.copies]
            object.__setattr__(made, "copies", frozenset(ids))
        return copied, frozenset([id(copied), *map(id, self._memo.values())])

    def _changes(self, value: Any) -> bool:
        return id(value) in self._affected or self._replace(value) is not _NOTHING

    def _copy(self, value: Any) -> Any:
        replaced = self._replace(value)
        if replaced is not _NOTHING:
            return replaced
        if id(value) not in self._affected:
            return value
        if id(value) in self._memo:
            return self._memo[id(value)]
        # What it holds may hold it, and have copied it meanwhile.
        made = self._made(value)
        return self._memo.setdefault(id(value), made)

    def _made(self, value: Any) -> Any:
        if isinstance(value, types.FunctionType):
            return self._function(value)
        if isinstance(value, types.MethodType):
            return types.MethodType(self._copy(value.__func__), self._copy(value.__self__))
        if isinstance(value, (types.BuiltinMethodType, _Method)):
            owner, name = self._copy(value.__self__), value.__name__
            return _Method(owner, name) if isinstance(owner, _Hole) else getattr(owner, name)
        if isinstance(value, functools.partial):
            keywords = {name: self._copy(item) for name, item in value.keywords.items()}
            return functools.partial(
                self._copy(value.func), *map(self._copy, value.args), **keywords
            )
        if isinstance(value, tuple):
            items = [self._copy(item) for item in value]
            make = getattr(type(value), "_make", None)
            return tuple(items) if type(value) is tuple else (make or type(value))(items)
        if isinstance(value, (set, frozenset)):
            return type(value)([self._copy(item) for item in value])
        return self._object(value)

    def _function(self, function: types.FunctionType) -> Any:
        inner = getattr(function, "_torchdynamo_orig_callable", None)
        if inner is not None:  # compiled by Dynamo, which looks into closures by itself
            return self._copy(inner)
        cells = tuple(map(self._cell, function.__closure__ or ()))
        variables = self._variables(function.__globals__)
        if id(function) in self._memo:
            return self._memo[id(function)]
        made = types.FunctionType(
            function.__code__, variables, function.__name__, None, cells or None
        )
        self._memo[id(function)] = made
        self.objects.append((function, made))
        COPIED.add(made)
        made.__defaults__ = self._items(function.__defaults__)
        made.__kwdefaults__ = self._named(function.__kwdefaults__)  # type: ignore[assignment]
        made.__dict__.update(function.__dict__)
        made.__module__, made.__qualname__ = function.__module__, function.__qualname__
        made.__doc__, made.__annotations__ = function.__doc__, function.__annotations__
        for cell, new in zip(function.__closure__ or (), cells, strict=True):
            if new is not cell:
                new.cell_contents = self._copy(cell.cell_contents)
        return made

    def _items(self, values: tuple[Any, ...] | None) -> tuple[Any, ...] | None:
        return None if values is None else tuple(self._copy(value) for value in values)

    def _named(self, values: dict[str, Any] | None) -> dict[str, Any] | None:
        return None if values is None else {name: self._copy(v) for name, v in values.items()}

    def _cell(self, cell: types.CellType) -> types.CellType:
        """A cell of its own where the content changes; one that functions share stays shared."""
        try:
            changes = self._changes(cell.cell_contents)
        except ValueError:  # not assigned yet
            return cell
        return self._memo.setdefault(id(cell), types.CellType()) if changes else cell

    def _variables(self, variables: dict[str, Any]) -> dict[str, Any]:
        names = [name for name, value in tuple(variables.items()) if self._changes(value)]
        if not names:
            return variables
        if id(variables) not in self._memo:
            made = self._memo[id(variables)] = CopiedGlobals(variables)
            made.original = getattr(variables, "original", variables)
            self.objects.append((variables, made))
            made.update({name: self._copy(variables[name]) for name in names})
        return self._memo[id(variables)]

    def _object(self, value: Any) -> Any:
        """A copy with attributes and items of its own."""
        kind = type(value)
        wrapped = getattr(value, "__wrapped__", None)
        if wrapped is not None and kind.__module__.startswith("funcaot.aot"):
            return self._copy(wrapped)  # a compiled function, which finds its closure by identity
        try:
            new: Any = kind.__new__ if isinstance(value, _OWN_NEW) else object.__new__
            made = new(kind)
        except TypeError:
            raise Sealed(
                f"A custom rule holds a tensor in a {kind.__name__}, which can't be copied.",
                remedy="pass the tensor as an argument.",
            ) from None
        self._memo[id(value)] = made
        if isinstance(getattr(value, "__dict__", None), dict) or isinstance(value, (dict, list)):
            self.objects.append((value, made))
        if isinstance(value, Hollow):  # its copies are copied, and it knows them by their ids
            self._hollows.append((value, made))
        if isinstance(value, dict):
            if isinstance(value, defaultdict):
                made.default_factory = value.default_factory
            for key, item in value.items():
                dict.__setitem__(made, key, self._copy(item))
        elif isinstance(value, list):
            list.extend(made, map(self._copy, value))
        elif isinstance(value, deque):
            deque.__init__(made, map(self._copy, value), value.maxlen)
        for name, item in getattr(value, "__dict__", {}).items():
            made.__dict__[name] = self._copy(item)
        for name, item in held_in_slots(value):
            object.__setattr__(made, name, self._copy(item))
        return made
