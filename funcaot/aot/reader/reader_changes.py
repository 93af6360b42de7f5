"""Writes how a reader compares what a function both reads and changes; ``reader`` calls it."""

from __future__ import annotations

from collections import defaultdict, deque
from dataclasses import replace
from typing import Any

from funcaot.aot.closure.constants import is_immutable, is_setting
from funcaot.aot.closure.environment import Environment, Place
from funcaot.aot.closure.named.given import Given, told_key
from funcaot.aot.reader.reader_source import EnvironmentWriter
from funcaot.aot.state.state import MISSING, Bag, name_of
from funcaot.aot.state.state_effects import Change
from funcaot.aot.state.state_tracker import StateTracker


def given_by(tracker: StateTracker) -> Given:
    """What a function gives new values.

    Args:
        tracker: What it stores.
    """
    changed, made_of_old, counted = set[tuple[int, Any]](), set[Any](), set[int]()
    items: dict[int, frozenset[Any]] = {}
    for bag, change in tracker.found:
        if bag.is_container:
            items[bag.holder] = _keys_changed(bag, change)
            if change.makes_items and tracker.environment.counts_items(bag.holder):
                counted.add(bag.holder)
        # A class is compared wherever an object of it is.
        holder = 0 if isinstance(bag.thing, type) else bag.holder
        for key, _ in (*change.assigned, *change.counted, *change.computed):
            name = name_of(bag, key, tracker.environment)
            if key in change.made_of_old:
                made_of_old.add(name)
            else:
                changed.add((holder, name))
    return Given(frozenset(changed), frozenset(made_of_old), frozenset(counted), items)


def _keys_changed(bag: Bag, change: Change) -> frozenset[Any]:
    """The keys of a container at which something else is now; of a sequence from both its ends."""
    keys = {told_key(key) for key, _ in (*change.assigned, *change.counted, *change.computed)}
    if change.contents is not None and not isinstance(bag.before, dict):
        keys.update(i for i, came in enumerate(change.contents) if came != (True, i))
    if isinstance(bag.before, dict):
        return frozenset(keys)
    return frozenset(keys | {key - len(bag.before) for key in keys})


def write_moved(writer: EnvironmentWriter, bag: Bag, change: Change) -> None:
    """Write what tells where the items of a list came from that are somewhere else in it now.

    Where one object was there twice, either may have been moved. Equal numbers are one object
    wherever they come from.

    Args:
        writer: The writer, which has written the other checks.
        bag: A list or deque that it changes.
        change: What it changes there.
    """
    if bag.holder not in writer.environment.objects or isinstance(bag.thing, dict | set):
        return
    moved = {old for new, (kept, old) in enumerate(change.contents or ()) if kept and new != old}
    if not (moved or (change.added and isinstance(bag.thing, deque))):
        return
    at, path = writer.thing(bag), writer.says(bag.holder)
    first: dict[int, int] = {}
    for index, value in enumerate(bag.before):
        found = first.setdefault(id(value), index)
        if index in moved and is_immutable(value):
            writer.require_setting(f"{at}[{index}]", value, f"{path}[{index}]")
        elif found != index:
            says = f"{path}[{found}] and {path}[{index}] are one object"
            writer.require(f"{at}[{found}] is {at}[{index}]", says)


def kept_by(tracker: StateTracker) -> frozenset[int]:
    """Objects that were there before, and that it returns or stores; not those that it is given."""
    kept = zip(tracker.kept, tracker.kept_identities, strict=True)
    return frozenset(identity for place, identity in kept if isinstance(place, Bag | Place))


def kept_things(finder: EnvironmentWriter, tracker: StateTracker) -> list[str]:
    """The expressions that find these.

    Args:
        finder: Of an environment that `read_first` gives.
        tracker: What the function stores.
    """
    things = list[str]()
    for place, identity in zip(tracker.kept, tracker.kept_identities, strict=True):
        places = finder.environment.places.get(identity)
        if isinstance(place, Bag | Place) and places:
            things.append(finder.at(places[0]))
        elif isinstance(place, Bag):
            things.append(finder.thing(place))
        elif isinstance(place, Place):
            things.append(finder.at(place))
    return things


def read_first(before: Environment, environment: Environment) -> Environment:
    """What was reached, each thing first where code reads it: that is compared in each call.

    The first places stay a forest, also where objects refer to one another: they are those of a
    search from what nothing leads to, along what is read; for other things, those of the walk.
    """
    found = defaultdict[int, list[tuple[int, Place]]](list)
    for identity, places in environment.places.items():
        read = {(place.parent, place.access) for place in places if environment.is_read(place)}
        for place in before.places.get(identity, ()) if read else ():
            if (place.parent, place.access) in read:
                found[place.parent].append((identity, place))
    waiting = deque(parent for parent in found if _is_root(before, parent))
    first = dict[int, Place]()
    while waiting:
        for identity, place in found[waiting.popleft()]:
            if identity not in first and not _is_root(before, identity):
                first[identity] = place
                waiting.append(identity)
    places = {
        identity: sorted(there, key=lambda place: place is not first.get(identity))
        if len(there) > 1
        else there
        for identity, there in before.places.items()
    }
    return replace(before, places=places)


def _is_root(environment: Environment, identity: int) -> bool:
    return identity in environment.anchors or not environment.places.get(identity)


def write_changed(writer: EnvironmentWriter, bag: Bag, change: Change) -> None:
    """Write that what the function changes, and also reads, is what it was at the capture.

    Args:
        writer: The writer, which has written the other checks.
        bag: A dictionary, cell, list, deque or set that it changes.
        change: What it changes there.
    """
    if bag.holder not in writer.environment.objects:
        return  # no code that ran reads it
    if not isinstance(bag.before, dict):
        writer.variable(bag.holder)
        return
    thing = writer.thing(bag)
    path = writer.says(bag.holder)
    if not isinstance(bag.thing, dict):
        # The rest is read as tensors, or isn't read.
        for key, _ in change.assigned:
            old = bag.before.get(key, MISSING)
            if is_setting(old) and key not in change.left_open:
                at = f"__dict__[{key!r}]" if isinstance(bag.thing, type) else key
                name = name_of(bag, key, writer.environment)
                writer.require_setting(f"{thing}.{at}", old, f"{path}.{name}")
        return
    if not bag.named:
        known = writer.source.constant([*bag.before], "keys")
        writer.require(f"[*{thing}] == {known}", f"the keys of {path}")
    first = writer.environment.set_first(writer.environment.objects[bag.holder])
    for key, _ in change.assigned:
        if key in change.left_open or (bag.named and key in first):
            continue
        text = writer.source.constant(key)
        old = bag.before.get(key, MISSING)
        says = f"{path}.{key}" if bag.named else f"{path}[{key!r}]"
        if old is MISSING:
            writer.require(f"{text} not in {thing}", f"{says} isn't there")
        elif is_setting(old):
            writer.require_setting(f"{thing}[{text}]", old, says)
        else:
            writer.require(f"{text} in {thing}", f"{says} is there")


def write_counted(writer: EnvironmentWriter, bag: Bag, change: Change) -> None:
    """Write that there are whole numbers of its own where the function counts.

    An object whose class alone has such a number gets one of its own by counting.

    Args:
        writer: The writer, which has written the other checks.
        bag: A dictionary, cell, class or list that it counts in.
        change: What it counts there.
    """
    if bag.holder not in writer.environment.objects:
        return  # a call finds it only when it stores there
    at, path = writer.thing(bag), writer.says(bag.holder)
    for key, _ in change.counted:
        text = writer.source.constant(key)
        name = f".{name_of(bag, key, writer.environment)}" if bag.named else f"[{key!r}]"
        if isinstance(bag.thing, list):
            found, value = f"{text} < len({at})", f"{at}[{text}]"
        elif isinstance(bag.thing, dict):
            found, value = f"{text} in {at}", f"{at}[{text}]"
        else:
            found, value = f"hasattr({at}, {text})", f"{at}.{key}"
        writer.require(f"{found} and type({value}) is int", f"{path}{name} is a whole number")


def write_kind(writer: EnvironmentWriter, bag: Bag) -> None:
    """Write that what the function only adds to is still there, and of the class that it was.

    Args:
        writer: The writer, which has written the other checks.
        bag: A list, dictionary, deque or set that it changes and doesn't read.
    """
    if bag.holder not in writer.environment.objects:
        return  # a call finds it only when it stores there
    kind, path = writer.source.constant(type(bag.thing), "T"), writer.says(bag.holder)
    name = type(bag.thing).__name__
    at = writer.thing(bag)
    change = f"told_thing({path!r}, {name!r}, {at})"
    writer.require(f"type({at}) is {kind}", f"{path} is a {name}", change)
