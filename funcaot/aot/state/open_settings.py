"""Numbers that a function reads besides its arguments, left open: for ``state_tracker``.

While the function is captured, what is written down as Python stands where the number stood: in an
attribute, an entry of a dictionary or list, a variable that is closed over, a global. The reader of
the program reads the number of each call, and makes the tensors that stand for what is computed.
"""

from __future__ import annotations

import ast
import gc
import types
import weakref
from collections import Counter, OrderedDict, defaultdict
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch

from funcaot._torch.tensors.pytree import tree_flatten, tree_unflatten
from funcaot._torch.tensors.sizes.number_log import NumberLog, WrittenLog
from funcaot._torch.tensors.sizes.of_numpy.written import KINDS
from funcaot._torch.tensors.sizes.open_numbers import OpenFloat, OpenInt
from funcaot._torch.tensors.sizes.shapes import SizeError
from funcaot._torch.tensors.sizes.written_numbers import (
    holds_written,
    is_written,
    written,
    written_argument,
)
from funcaot._torch.tracing import tracing
from funcaot.aot.closure.alike import may_be_another
from funcaot.aot.closure.children import CONTAINERS, is_exact
from funcaot.aot.closure.environment import Environment, Place
from funcaot.aot.closure.hidden.kept_results import Finder
from funcaot.aot.closure.walk import Walk
from funcaot.aot.closure.where import key_of
from funcaot.aot.graph.settings import SPECIAL, NumbersRead
from funcaot.aot.state import state
from funcaot.aot.state.state import Bag

__all__ = ["ITEM", "Number", "OpenSettings", "numbers_at"]

ITEM = "{parent}[{0}]"  # How an item of such a container is reached, by a key among the constants.
_WHOLE = (
    list,
    dict,
    defaultdict,
    OrderedDict,
)  # One setting each, if they hold nothing else.


@dataclass(frozen=True, eq=False)
class Number:
    """A number that code reads.

    Attributes:
        place: Where it is, or the container that it is in.
        inside: Whether it is in a container that is at that place.
        thing: What holds it: a dictionary, list, cell, class or object.
        key: Its key in that, as ``state.put`` takes it.
        value: The number.
        owner: What `NumbersRead` knows that by: the ``id`` of what holds it, or the way to an
            object in whose place another one may stand.
        row: The tuple of numbers at that key, if the number is in one.
        index: Where in the tuple.
    """

    place: Place
    inside: bool
    thing: Any
    key: Any
    value: int | float
    owner: Any
    row: tuple[Any, ...] | None = None
    index: int = 0

    @property
    def name(self) -> tuple[Any, Any]:
        """What it is called in `NumbersRead`."""
        return self.owner, self._within

    @property
    def names(self) -> tuple[tuple[Any, Any], ...]:
        """All that it is called there; first by where its container is."""
        if self.inside and self.owner == id(self.thing):
            return ((self.place.parent, self.place.access), self._within), self.name
        return (self.name,)

    @property
    def _within(self) -> Any:
        return self.key if self.row is None else (self.key, self.index)

    def at(self, read: str) -> str:
        """The expression that reads what is at its key, of the one that reads the place."""
        return f"{read}[{self.key!r}]" if self.inside else read

    def put(self, stands: Any) -> None:
        """Have something stand for it, beside what stands for others in its tuple."""
        if self.row is not None:
            now = list(state.get(self.thing, self.key))
            now[self.index] = stands
            stands = tuple(now)
        state.put(self.thing, self.key, stands)

    def restore(self) -> None:
        """Put it back, or its tuple."""
        state.put(self.thing, self.key, self.value if self.row is None else self.row)


def numbers_at(environment: Environment, place: Place, value: Any) -> Iterator[Number]:
    """The numbers that a setting is or holds, where they can be replaced."""
    way = _way_to(environment, place) if _moves(environment, place.parent) else None
    if type(value) in KINDS:
        holder = _holder(environment, place)
        if holder is not None:
            thing, key = holder
            yield Number(place, False, thing, key, value, _owner(thing, way))
    elif _is_row(value):
        holder = _holder(environment, place)
        if holder is not None:
            thing, key = holder
            yield from _in_row(Number(place, False, thing, key, 0.0, _owner(thing, way), value))
    elif type(value) in _WHOLE:
        items = enumerate(value) if type(value) is list else value.items()
        for key, item in items:
            if type(key) not in (int, str):
                continue
            if type(item) in KINDS:
                yield Number(place, True, value, key, item, way or id(value))
            elif _is_row(item):
                yield from _in_row(Number(place, True, value, key, 0.0, way or id(value), item))


def _owner(thing: Any, way: tuple[Any, ...] | None) -> Any:
    """What a number is known by; a class is one, whichever object of it leads there."""
    return id(thing) if way is None or isinstance(thing, type) else way


def _is_row(value: Any) -> bool:
    """Whether a setting is a tuple of numbers, such as the betas of an optimizer."""
    return type(value) is tuple and bool(value) and all(type(item) is float for item in value)


def _in_row(of_row: Number) -> Iterator[Number]:
    """The numbers in a tuple."""
    for index, value in enumerate(of_row.row or ()):
        yield replace(of_row, value=value, index=index)


def _moves(environment: Environment, identity: int) -> bool:
    """Whether another thing may be there in each call: an object, or what is in one."""
    while identity not in environment.anchors:
        thing, places = environment.objects[identity], environment.places.get(identity)
        if not isinstance(thing, CONTAINERS) or not places:
            return may_be_another(thing)
        identity = places[0].parent
    return may_be_another(environment.objects[identity])


def _way_to(environment: Environment, place: Place) -> tuple[Any, ...]:
    """How a number is reached, with what the texts of the steps don't say."""
    named, step = [], place
    while True:
        for constant in step.constants:
            meant = constant() if isinstance(constant, weakref.ref) else constant
            named.append(meant.identity if isinstance(meant, Finder) else id(meant))
        places = environment.places.get(step.parent)
        if not places or step.parent in environment.anchors:
            return key_of(environment, place.parent), place.access, tuple(named)
        step = places[0]


def _is_argument(leaf: Any) -> bool:
    return type(leaf) in (OpenFloat, OpenInt) and leaf.argument is not None


def _holder(environment: Environment, place: Place) -> tuple[Any, Any] | None:
    """What a place is in, with its key there; None for what can't be set."""
    parent, access = environment.objects[place.parent], place.access
    if access.endswith(".cell_contents"):
        return _evaluated(access.removesuffix(".cell_contents"), parent), "cell_contents"
    if access.startswith("{parent}.") and access.removeprefix("{parent}.").isidentifier():
        return parent, access.removeprefix("{parent}.")
    if access == ITEM and len(place.constants) == 1:
        return _changeable(parent, place.constants[0])
    before, bracket, after = access.rpartition("[")
    if not bracket or place.constants:
        return None
    try:
        key = ast.literal_eval(after[:-1].replace("{{", "{").replace("}}", "}"))
    except (SyntaxError, ValueError):
        return None
    thing = _evaluated(before, parent)
    if isinstance(thing, types.MappingProxyType) and before.endswith(".__dict__"):
        thing = _evaluated(before.removesuffix(".__dict__"), parent)
    return (thing, key) if isinstance(thing, type) else _changeable(thing, key)


def _changeable(thing: Any, key: Any) -> tuple[Any, Any] | None:
    if type(thing) is Counter or (isinstance(thing, dict | list) and is_exact(thing)):
        return thing, key
    return None


def _evaluated(access: str, parent: Any) -> Any:
    return eval(access.replace("{parent}", "parent"), {"parent": parent})


def _real_tensor(value: float) -> torch.Tensor:
    with (
        tracing.temporarily_clear_interpreter_stack(),
        tracing.disable_current_modes(),
        tracing.without_torch_function(),
    ):
        return torch.scalar_tensor(value, dtype=torch.float64, device="cpu")


class _ReadLog(NumberLog):
    """Numbers that a function reads off tensors."""

    def __init__(self, known: NumbersRead) -> None:
        super().__init__()
        self._known = known

    def note(self, number: Any) -> None:
        self._known.has_read = True
        super().note(number)


class OpenSettings:
    """The numbers that one capture leaves open.

    Attributes:
        log: What is computed of them.
        opened: What they are, in the order of their names: ``setting_0`` and so on.
        reads: Numbers that the function reads off tensors.
        unread: Indices of those that no code reads which ran, once that is known.
    """

    def __init__(self, known: NumbersRead) -> None:
        """Nothing is open yet.

        Args:
            known: Numbers that the function reads, with what they were.
        """
        self.log = WrittenLog(_real_tensor)
        self.opened: list[Number] = []
        self.reads = _ReadLog(known)
        self.unread: set[int] = set()
        self._known = known
        self._put: dict[tuple[Any, Any], int] = {}
        self._rows: list[tuple[Any, Any]] = []  # Tuples in which things stand, and the old ones.
        self._looked_at = 0

    @property
    def may_open(self) -> bool:
        """Whether some may be."""
        return self._known.may_be_open and bool(self._known.values)

    @property
    def may_read(self) -> bool:
        """Whether floats that are read off tensors may stay in the graph."""
        return self._known.may_be_open and self._known.reads

    def start(self) -> None:
        """Forget which settings a former run reached; names stay."""
        self._looked_at = 0
        self.log.restart()

    def put_arguments(self, call: Any) -> Any:
        """A call's arguments with what is written down in place of their open numbers."""
        leaves, tree = tree_flatten(call)
        if not any(map(_is_argument, leaves)):
            return call
        return tree_unflatten([self._of_argument(leaf) for leaf in leaves], tree)

    def _of_argument(self, leaf: Any) -> Any:
        if not _is_argument(leaf):
            return leaf
        return written_argument(self.log, f"argument_{leaf.argument}", leaf.present, leaf)

    def put(self, environment: Environment) -> None:
        """Put what is written down in place of numbers that were reached since."""
        if not self.may_open:
            return
        new = environment.settings[self._looked_at :]
        self._looked_at = len(environment.settings)
        for place, value in new:
            for number in numbers_at(environment, place, value):
                if self._known.is_open(number.names, number.value):
                    self._open(number)

    def _open(self, number: Number) -> None:
        index = self._put.setdefault(number.name, len(self.opened))
        if index == len(self.opened):
            self.opened.append(number)
        elif self.opened[index].thing is not number.thing:
            # Two go by one name: then both are compared.
            self.log.fixed.add(index)
            return
        number.put(written(self.log, f"setting_{index}", number.value, index))
        if number.row is not None:
            self._rows.append((state.get(number.thing, number.key), number.row))

    def restore(self) -> None:
        """Put the numbers back where something stands for them."""
        for number in self.opened:
            number.restore()

    def plain(self, found: Sequence[tuple[Bag, Any]]) -> tuple[tuple[Bag, Any], ...]:
        """What was in things before, with the numbers themselves."""
        return tuple((self._plain_bag(bag), change) for bag, change in found)

    def plain_bags(self, bags: Iterable[Bag]) -> list[Bag]:
        """What was in things, with the numbers themselves."""
        return list(map(self._plain_bag, bags))

    def _plain_bag(self, bag: Bag) -> Bag:
        values: Iterable[Any] = bag.before.values() if isinstance(bag.before, dict) else bag.before
        if not any(map(holds_written, values)):
            return bag
        if isinstance(bag.before, dict):
            before: Any = {key: self._value(value) for key, value in bag.before.items()}
        else:
            before = tuple(map(self._value, bag.before))
        return replace(bag, before=before)

    def _value(self, value: Any) -> Any:
        if is_written(value):
            return value.value
        return next((row for stands, row in self._rows if stands is value), value)

    def refuse_functions(self, called: Sequence[tuple[Any, ...]]) -> None:
        """Refuse Functions that may read a number: their forwards run again, and see it itself.

        Args:
            called: For each Function its forward, and what it was given besides tensors.

        Raises:
            SizeError: Such a number is open.
        """
        for root in called if self.opened else ():
            walk = Walk(root)
            walk.go()
            if any(_is_reached(number, walk.found) for number in self.opened):
                raise SizeError("A Function may read an open number.", remedy="pass it.")

    def names_fixed(self) -> set[tuple[Any, Any]]:
        """The numbers that the program is right for one value of."""
        return {name for index in self.log.fixed for name in self.opened[index].names}

    def numbers(
        self, environment: Environment, settings: Iterable[tuple[Place, Any]]
    ) -> dict[tuple[Any, Any], int | float]:
        """The numbers that a reader compares, with their values."""
        return {
            name: number.value
            for place, value in settings
            for number in numbers_at(environment, place, value)
            for name in number.names
        }

    @property
    def left_open(self) -> frozenset[tuple[Any, Any]]:
        """The numbers that may be others in each call."""
        opened = (name for number in self.opened for name in number.names)
        return frozenset(opened) - self.names_fixed()

    def note(self, environment: Environment) -> None:
        """Note what the numbers are that a program was made for, and which of them may change."""
        self._known.note(self.numbers(environment, environment.settings))
        self._known.changed |= self.left_open

    def again(self, *, reads: bool) -> NumbersRead:
        """What has a capture leave the same numbers open.

        Args:
            reads: Whether floats that are read off tensors stay in the graph.
        """
        values = {name: number.value for number in self.opened for name in number.names}
        either = reads or bool(values)
        return NumbersRead(values, set(values), may_be_open=either, reads=reads)

    def close(self, environment: Environment, compared: Iterable[tuple[Place, Any]] = ()) -> None:
        """Take note that the capture is over.

        Args:
            environment: What the code that ran has read.
            compared: What a call has to find as it was besides.

        Raises:
            SizeError: If the function kept a number where later code finds it.
        """
        self._known.note(self.numbers(environment, [*environment.settings, *compared]))
        self.reads.end()
        if self.reads.are_kept():
            raise SizeError("The function keeps a number.", remedy="open_numbers=False.")
        usual = (self.opened[index] for index in self.log.fixed)
        usual = [number for number in usual if number.value not in SPECIAL]
        self._known.strike({name for number in usual for name in number.names})
        self.log.end()
        self._rows.clear()
        if self.log.are_kept():
            gc.collect()  # A frame may be part of a cycle.
        if self.log.are_kept():
            raise SizeError("The function keeps an open number.", remedy="open_numbers=False.")


def _is_reached(number: Number, environment: Environment) -> bool:
    used = environment.namespaces.get(id(number.thing))
    if used is not None:
        return number.key in used
    return {id(number.thing), number.place.parent} & environment.objects.keys() != set()
