"""What a function can reach besides its arguments: tensors, modules and settings it closes over.

The tracker of state walks before and while the function is captured, to see what it changes; the
reader walks after it, with the code that ran, to see what the program depends on.
"""

from __future__ import annotations

import functools
import types
from collections import defaultdict, deque
from collections.abc import Set
from dataclasses import dataclass, field, replace
from typing import Any

from funcaot.aot.closure.named.code_names import ReadNames
from funcaot.aot.closure.named.entered import set_on_entering
from funcaot.aot.closure.named.given import Given
from funcaot.aot.closure.ran import Ran

_CHANGEABLE = (list, dict, set, deque)


@dataclass(frozen=True)
class Place:
    """How an object is reached from another one.

    Attributes:
        parent: The other one, by ``id``.
        access: Source text on ``{parent}``.
        name: The name that code would use; empty if it is always read.
        constants: Objects that the text names, as ``{0}`` and so on.
    """

    parent: int
    access: str
    name: str = ""
    constants: tuple[Any, ...] = ()

    def asked(self, function: Any) -> Place:
        """The place of what a function says of what is here."""
        text = f"{{{len(self.constants)}}}({self.access})"
        return replace(self, access=text, constants=(*self.constants, function))


@dataclass
class Environment:
    """Objects reachable from a function: its closure, globals, ``self``, modules, containers.

    Attributes:
        names: The names that code among them reads.
        places: For each object, by ``id``, the ways in which it was reached.
        objects: The objects; alive as long as this record, so that ids stay theirs.
        settings: Numbers, strings and the like that some code reached can read: where, and value.
        identities: Things that are compared by identity alone: functions of libraries and the like.
        arrays: NumPy arrays and the like, whose contents are compared.
        namespaces: Dictionaries of globals, by ``id``, with the names that code uses of them.
        missing: Names that code looks up in such a dictionary, and that aren't there.
        parts: Texts that names may be made of which code looks up in such a dictionary.
        anchors: Objects that nothing leads to, by ``id``: source text that finds them, and what
            that names.
        escaped: Symbolic numbers that a capture left behind.
        ran: The code that ran, if that is known.
        given: What the caller calls objects among the arguments, by ``id``.
        alike: Objects in whose place another one of their class may stand, by ``id``.
    """

    names: ReadNames = field(default_factory=ReadNames)
    places: dict[int, list[Place]] = field(default_factory=dict)
    objects: dict[int, Any] = field(default_factory=dict)
    settings: list[tuple[Place, Any]] = field(default_factory=list)
    identities: list[tuple[Place, Any]] = field(default_factory=list)
    arrays: list[tuple[Place, Any]] = field(default_factory=list)
    namespaces: dict[int, set[str]] = field(default_factory=dict)
    missing: dict[int, set[str]] = field(default_factory=dict)
    parts: dict[int, set[str]] = field(default_factory=dict)
    anchors: dict[int, tuple[str, Any]] = field(default_factory=dict)
    escaped: list[Place] = field(default_factory=list)
    ran: Ran | None = None
    given: dict[int, str] = field(default_factory=dict)
    alike: frozenset[int] = frozenset()
    _set_first: dict[type, frozenset[str]] = field(default_factory=dict)

    def may_run(self, code: types.CodeType) -> bool:
        """Whether a function's code may have run."""
        return self.ran is None or code in self.ran.users

    @functools.cached_property
    def unread(self) -> frozenset[int]:
        """Containers that code only adds to, by ``id``, and what is in them alone."""
        containers = self._only_added_to()
        return containers | self._only_in(self._never_looked_into(containers))

    def _only_added_to(self) -> frozenset[int]:
        """Containers that code only adds to, and those within them."""
        unread = {
            id(thing)
            for thing in self.objects.values()
            if isinstance(thing, _CHANGEABLE) and id(thing) not in self.namespaces
        }
        unread = {identity for identity in unread if self.places[identity]}
        while True:
            read = [i for i in unread if any(self._reads(p, unread) for p in self.places[i])]
            if not read:
                return frozenset(unread)
            unread = unread.difference(read)

    def named_above(self, identity: int) -> frozenset[str]:
        """The names by which code reaches a container, or the outermost one that it is within."""
        names, seen, waiting = set[str](), {identity}, [identity]
        while waiting:
            places = self.places.get(waiting.pop(), ())
            names.update(place.name for place in places if place.name)
            above = {place.parent for place in places if not place.name} - seen
            seen |= above
            waiting += above
        return frozenset(names)

    def counts_items(self, identity: int) -> bool:
        """Whether code counts in items of a container, by its name or that of one around it."""
        return any(map(self.names.counts_items, self.named_above(identity)))

    def may_hold_items(self, thing: Any, given: Given) -> bool:
        """Whether code may have assigned an item of a container that was there."""
        if not isinstance(thing, _CHANGEABLE) or id(thing) in self.namespaces:
            return False
        above = self.named_above(id(thing))
        adds = isinstance(thing, set | deque) and bool(above)
        if not (adds or any(map(self.names.assigns_items, above))):
            return False
        return given.may_hold_items(thing, self.names)

    def _never_looked_into(self, containers: Set[int]) -> Set[int]:
        """Those of them that code gets no item from, as ``kept["a"].append(x)`` does."""
        closed = {*containers}

        def is_open(place: Place) -> bool:
            if place.parent in containers:
                return place.parent not in closed
            return self.names.looks_up(place.name)

        while opened := [i for i in closed if any(map(is_open, self.places[i]))]:
            closed.difference_update(opened)
        return closed

    def _only_in(self, containers: Set[int]) -> Set[int]:
        """Objects that nothing leads to but some containers."""
        if not containers:
            return containers
        inside = defaultdict[int, list[int]](list)
        for identity, places in self.places.items():
            for place in places:
                inside[place.parent].append(identity)
        known = containers | self.anchors.keys() | self.given.keys() | self.namespaces.keys()
        found, waiting = set[int](), [*containers]
        while waiting:
            new = {i for i in inside[waiting.pop()] if i not in known and i not in found}
            found |= new
            waiting += new
        held = {*containers, *found}

        def is_reached(identity: int) -> bool:
            return any(place.parent not in held for place in self.places[identity])

        while reached := [*filter(is_reached, held - containers)]:
            held.difference_update(reached)
        return held - containers

    def is_read(self, place: Place) -> bool:
        """Whether code may depend on what is at a place."""
        return self._reads(place, self.unread) and not self.is_set_first(place)

    def is_set_first(self, place: Place) -> bool:
        """Whether it is an attribute that a context manager sets before anything reads it."""
        holder = self.objects.get(place.parent)
        return bool(place.name) and place.name in self.set_first(holder)

    def set_first(self, holder: Any) -> frozenset[str]:
        """The names of such attributes of an object."""
        names, ran = self.names, self.ran
        if ran is None or names.reads_everything or names.reads_own(holder):
            return frozenset()
        kind = type(holder)
        if kind not in self._set_first:
            self._set_first[kind] = set_on_entering(kind, ran.users)
        return self._set_first[kind]

    def _reads(self, place: Place, unread: Set[int]) -> bool:
        return place.parent not in unread and self.names.reads(place.name)
