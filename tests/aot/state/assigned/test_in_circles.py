"""Objects that refer to one another, in which a function stores: found by what it reads of them."""

import random

import pytest
import torch

import funcaot

EDGES = ("left", "right", "up")
STORES = (
    "{one}.stored0 = x * 2",
    "{one}.stored1 = {other}.number",
    "{one}.number += 1",
    "{one}.log.append(x + 3)",
    "{one}.up = {other}",
    "{one}.left, {other}.left = {other}, {one}",
    "{one}.up = {other}; del {other}.up",
    "del {one}.up",
)


class Thing:
    pass


def world(rng):
    """Five things with attributes and lists that lead to each other, in circles too."""
    things = [Thing() for _ in range(5)]
    for place, thing in enumerate(things):
        thing.place, thing.number, thing.log = place, place, []
        for name in rng.sample(EDGES, rng.randint(1, 3)):
            setattr(thing, name, rng.choice(things))
        if rng.random() < 0.4:
            thing.many = [rng.choice(things)]
        if rng.random() < 0.5:
            thing.never_named = rng.choice(things)
    return things


def path(rng, thing):
    """What leads from a thing to another one, as text."""
    steps = ""
    for _ in range(rng.randint(1, 4)):
        names = sorted(vars(thing).keys() & {*EDGES, "many"})
        name = rng.choice(names)
        thing = thing.many[0] if name == "many" else getattr(thing, name)
        steps += ".many[0]" if name == "many" else f".{name}"
    return steps


def told(value):
    """A value as it may be compared between two worlds."""
    if isinstance(value, list):
        return [told(item) for item in value]
    if isinstance(value, torch.Tensor):
        return value.tolist()
    return f"thing {value.place}" if isinstance(value, Thing) else value


def life(seed, backend):
    """What all things hold after some calls, between which references change."""
    rng = random.Random(seed)
    things = world(rng)
    lines = []
    for _ in range(rng.randint(1, 3)):
        one, other = (f"w{path(rng, things[0])}" for _ in range(2))
        lines.append(f"    {rng.choice(STORES).format(one=one, other=other)}")
    source = "\n".join(["def f(x):", *lines, "    return x + 1"])
    names = {"w": things[0]}
    exec(source, names)
    f = names["f"] if backend is None else funcaot.compile(names["f"], backend=backend)
    held = []
    for call in range(4):
        if call > 1:
            thing = rng.choice(things)
            name = rng.choice((*EDGES, "never_named"))
            setattr(thing, name, rng.choice(things))
        try:
            f(torch.full((2,), call + 1.0))
        except AttributeError as error:
            held.append(str(error))
        held.append([{name: told(vars(thing)[name]) for name in vars(thing)} for thing in things])
    return source, held


@pytest.mark.parametrize("seed", range(40))
def test_as_in_eager(seed):
    assert life(seed, "eager") == life(seed, None)


@pytest.mark.long
@pytest.mark.parametrize("part", range(40, 640, 100))
def test_many_worlds(part):
    for seed in range(part, part + 100):
        assert life(seed, "eager") == life(seed, None), seed


def test_what_leads_back_to_what_is_read():
    """The way that the walk found first isn't read, and that which is read begins behind it."""
    results = []
    for compiled in (False, True):
        w, a, b = Thing(), Thing(), Thing()
        a.right, b.left = b, a
        w.never_named, w.many = a, [b]

        def f(x, w=w):
            w.many[0].left.right.stored = x
            w.many[0].left.stored = x
            return x * 2

        f = funcaot.compile(f, backend="eager") if compiled else f
        f(torch.ones(2))
        w.never_named = Thing()
        w.never_named.right = Thing()
        f(torch.full((2,), 5.0))
        results.append((a.stored.tolist(), b.stored.tolist(), vars(w.never_named.right)))
    assert results[0] == results[1]
