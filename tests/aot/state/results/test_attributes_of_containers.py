"""Attributes of objects that are containers too: a dictionary of settings, a list with a name."""

import collections

import pytest
import torch

import funcaot
from funcaot.errors import UnsupportedError
from tests.hostile import COMPILER


class Pair(collections.namedtuple("Pair", "first second")):
    pass


class Row(tuple):
    pass


class Names(frozenset):
    pass


class Layers(list):
    pass


class Settings(dict):
    pass


class Seen(set):
    pass


class Last(collections.deque):
    pass


class Ordered(collections.OrderedDict):
    pass


class Counts(collections.Counter):
    pass


class Made(collections.defaultdict):
    pass


class Kept(collections.UserDict):
    pass


class Slotted(list):
    __slots__ = ("count",)


class Holder:
    pass


CONTAINERS = {
    "named tuple": lambda: Pair(1, 2),
    "tuple": lambda: Row((1, 2)),
    "frozen set": lambda: Names((1, 2)),
    "list": lambda: Layers([1, 2]),
    "dictionary": lambda: Settings(a=1),
    "set": lambda: Seen((1, 2)),
    "deque": lambda: Last([1]),
    "ordered": lambda: Ordered(a=1),
    "counter": lambda: Counts("ab"),
    "default": lambda: Made(int, a=1),
    "user's": lambda: Kept(a=1),
}


def of_closure(thing):
    def run(x):
        thing.count += 1
        return x * thing.count

    return run


def of_attribute(thing):
    holder = Holder()
    holder.thing = thing

    def run(x):
        holder.thing.count += 1
        holder.thing.last = x * 2
        return x * holder.thing.count

    return run


def of_default(thing):
    def run(x, *, thing=thing):
        thing.count += 1
        return x * thing.count

    return run


def of_list(thing):
    things = [thing]

    def run(x):
        things[0].count += 1
        things[0].last = x.sin()
        return x * things[0].count

    return run


def deletes(thing):
    def run(x):
        if hasattr(thing, "first_time"):
            del thing.first_time
            return x * 2
        thing.first_time = thing.count + 1
        return x * 3

    return run


WAYS = (of_closure, of_attribute, of_default, of_list, deletes)


def session(make, way, compile_):
    thing = make()
    thing.count = 0
    function = compile_(way(thing))
    found = []
    for step in range(4):
        if step == 3:
            thing.count = 10
        found.append(
            (function(torch.ones(2)), dict.fromkeys(sorted(vars(thing)), True), thing.count)
        )
        found.append(getattr(thing, "last", None))
    return found


def check(make, way, backend):
    expected = session(make, way, lambda f: f)
    found = session(make, way, lambda f: funcaot.compile(f, backend=backend))
    torch.testing.assert_close(found, expected)


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("kind", CONTAINERS)
def test_changes_are_those_of_eager(kind, way):
    """What was stored there was lost, and counters stood still."""
    check(CONTAINERS[kind], way, COMPILER)


@pytest.mark.parametrize("kind", ["named tuple", "dictionary"])
def test_on_inductor(kind):
    check(CONTAINERS[kind], of_attribute, "inductor")


@pytest.mark.parametrize("kind", ["list", "dictionary", "ordered", "user's"])
def test_of_an_argument(kind):
    def run(thing, x):
        thing.count += 1
        thing.last = x * thing.count
        return x + thing.count

    found = []
    for function in (run, funcaot.compile(run, backend=COMPILER)):
        thing = CONTAINERS[kind]()
        thing.count = 0
        for step in range(4):
            if step == 3:
                thing.count = 10
            found.append((function(thing, torch.ones(2)), thing.count, thing.last))
    torch.testing.assert_close(found[4:], found[:4])


def test_slots_are_refused():
    thing = Slotted([1])
    thing.count = 0
    compiled = funcaot.compile(of_closure(thing), backend=COMPILER)
    for _ in range(2):
        with pytest.raises(UnsupportedError, match="changes a slot of thing, a Slotted"):
            compiled(torch.ones(2))
    assert thing.count == 0
