"""Plans by which a call makes the objects of a value from its own tensors.

``built_objects`` writes them; a program's outputs are a pytree whose structure has one.
"""

from __future__ import annotations

import copy
import types
import weakref
from collections import OrderedDict, defaultdict, deque
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch

from funcaot._torch.tensors.pytree import register, unflattener_of
from funcaot.aot.closure.look import dictionary_of
from funcaot.aot.state.results.recipes import Recipe

__all__ = ["DICTIONARIES", "ROWS", "Making", "Parts", "Plan", "Ref", "Unmade"]

DICTIONARIES = (OrderedDict, defaultdict, dict)
ROWS = (list, deque)


@dataclass(frozen=True)
class Ref:
    """What is at one place.

    Attributes:
        how: A ``constant``, or what is ``copied``; a ``leaf``; a container that was there before,
            which is ``kept``; something ``made``, or a ``weak`` reference to that.
        value: The constant, or a number.
    """

    how: str
    value: Any


@dataclass(frozen=True, eq=False)
class Making:
    """How to make one container or object.

    Attributes:
        kind: Its class.
        base: Python's class whose contents it has; None if it is of a registered class; ``Recipe``
            if it is made by a function; a class of cells.
        items: What is in it.
        keys: Keys of a dictionary; the context of a registered class; a deque's length, or what a
            default dictionary makes; a recipe's functions, and how many items the first takes.
        attributes: What is in its own dictionary, by name.
        slots: What is in its slots.
    """

    kind: type
    base: Any
    items: tuple[Ref, ...] = ()
    keys: Any = ()
    attributes: tuple[tuple[str, Ref], ...] = ()
    slots: tuple[tuple[str, Ref], ...] = ()


class Parts:
    """A function's value taken apart: a pytree of its tensors, which becomes the value again."""

    def __init__(self, leaves: list[Any], plan: Plan) -> None:
        """Keep both."""
        self.leaves = leaves
        self.plan = plan


@dataclass(frozen=True, eq=False)
class Plan:
    """How the objects of a value are made of leaves."""

    makings: tuple[Making, ...]
    root: Ref
    has_kept: bool = False

    @property
    def constants(self) -> list[Any]:
        """Objects that it holds on to, whichever stand in their places in a call."""
        refs = [ref for making in self.makings for ref in making.items]
        refs += [ref for making in self.makings for _, ref in (*making.attributes, *making.slots)]
        return [ref.value for ref in (self.root, *refs) if ref.how == "constant"]

    @property
    def keys(self) -> list[Any]:
        """Keys of the dictionaries that it makes, and what is in its sets."""
        found = [
            key
            for making in self.makings
            if making.base in DICTIONARIES or making.kind in DICTIONARIES
            for key in making.keys[0]
        ]
        sets = (making for making in self.makings if making.kind in (set, frozenset))
        return found + [ref.value for making in sets for ref in making.items]

    def make(self, leaves: Sequence[Any]) -> Any:
        """Make the value, or what makes it of containers that only the call can find."""
        unmade = Unmade(self, leaves)
        return unmade if self.has_kept else unmade.make(())


@dataclass(frozen=True, eq=False)
class Unmade:
    """A value that has containers in it which were there before the call."""

    plan: Plan
    leaves: Sequence[Any]

    def make(self, kept: Sequence[Any]) -> Any:
        """Make the value.

        Args:
            kept: The containers.
        """
        return _Maker(self.plan.makings, self.leaves, kept).whole(self.plan.root)


register(
    Parts,
    lambda parts: (parts.leaves, parts.plan),
    lambda leaves, plan: plan.make([*leaves]),
)


class _Maker:
    """Makes one call's objects."""

    def __init__(
        self, makings: tuple[Making, ...], leaves: Sequence[Any], kept: Sequence[Any]
    ) -> None:
        self._makings = makings
        self._leaves = leaves
        self._kept = kept
        self._made: dict[int, Any] = {}
        self._cells: list[tuple[types.CellType, Ref]] = []

    def whole(self, root: Ref) -> Any:
        """Make everything that a root needs; cells last, since a function may be in its own."""
        made = self.at(root)
        while self._cells:
            cell, contents = self._cells.pop()
            cell.cell_contents = self.at(contents)
        return made

    def at(self, ref: Ref) -> Any:
        """What is at a place."""
        if ref.how == "constant":
            return ref.value
        if ref.how == "leaf":
            return self._leaves[ref.value]
        if ref.how == "kept":
            return self._kept[ref.value]
        if ref.how == "copied":
            return copy.copy(ref.value)
        if ref.how == "weak":
            return weakref.ref(self.at(ref.value))
        found = self._made.get(ref.value, self)
        return self._make(ref.value) if found is self else found

    def _make(self, position: int) -> Any:
        making = self._makings[position]
        if making.kind is types.CellType:
            made = self._made[position] = types.CellType()
            self._cells += [(made, contents) for contents in making.items]
        elif making.base is Recipe:
            make, count, fill = making.keys
            made = self._made[position] = make(*map(self.at, making.items[:count]))
            if fill is not None:
                fill(made, *map(self.at, making.items[count:]))
        elif making.base is None or making.base is tuple:
            items = [self.at(item) for item in making.items]
            if making.base is None:
                made = unflattener_of(making.kind)(items, making.keys)
            elif making.kind is torch.Size:
                made = torch.Size(items)
            else:
                made = tuple.__new__(making.kind, items)
            self._made[position] = made
        else:
            made = self._made[position] = making.base.__new__(making.kind)
            self._fill(made, making)
        if making.attributes:
            own = dictionary_of(made)
            if own is not None:
                own.update((key, self.at(ref)) for key, ref in making.attributes)
        for key, ref in making.slots:
            object.__setattr__(made, key, self.at(ref))
        return made

    def _fill(self, made: Any, making: Making) -> None:
        base = making.base
        if base in DICTIONARIES:
            keys, factory = making.keys
            if base is defaultdict:
                made.default_factory = factory
            for key, item in zip(keys, making.items, strict=True):
                base.__setitem__(made, key, self.at(item))
        elif base is deque:
            deque.__init__(made, map(self.at, making.items), making.keys)
        elif base is list:
            list.extend(made, map(self.at, making.items))
