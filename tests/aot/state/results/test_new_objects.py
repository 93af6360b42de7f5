"""Objects without tensors that a function makes: each call hands back its own, as in eager."""

import argparse
import collections
import configparser
import contextlib
import functools
import io
import logging
import pathlib
import queue
import random
import threading
import types
import warnings
import weakref
from fractions import Fraction

import numpy
import pytest
import torch
from torch import nn

import funcaot
from tests.hostile import COMPILER


def condition():
    made = threading.Condition()
    return {"condition": made, "again": [made]}


def parser():
    made = argparse.ArgumentParser("x")
    made.add_argument("--size", type=int, default=3)
    return made


def chained():
    inner = collections.Counter("aab")
    return collections.ChainMap(inner, {"z": inner})


# How an object is made, how somebody changes it, and what is then to be seen of it.
MADE = {
    "counter": (lambda: collections.Counter("aab"), lambda c: c.update("a"), dict),
    "chain": (chained, lambda c: c.update(a=9), lambda c: (dict(c), c["z"] is c.maps[0])),
    "user dict": (lambda: collections.UserDict(a=1), lambda c: c.update(b=2), dict),
    "user list": (lambda: collections.UserList([1]), lambda c: c.append(2), list),
    "namespace": (lambda: argparse.Namespace(a=[1]), lambda n: n.a.append(2), vars),
    "text": (lambda: io.StringIO("ab"), lambda s: s.write("xyz"), io.StringIO.getvalue),
    "bytes": (lambda: io.BytesIO(b"ab"), lambda s: s.write(b"xyz"), io.BytesIO.getvalue),
    "random": (lambda: random.Random(3), random.Random.random, random.Random.random),
    "numpy": (lambda: numpy.random.default_rng(3), lambda g: g.random(), lambda g: g.random()),
    "lock": (threading.Lock, lambda lock: lock.acquire(), lambda lock: lock.locked()),
    "event": (threading.Event, threading.Event.set, threading.Event.is_set),
    "condition": (
        condition,
        lambda c: c["condition"].acquire(),
        lambda c: (c["condition"].acquire(blocking=False), c["again"][0] is c["condition"]),
    ),
    "queue": (queue.Queue, lambda q: q.put(1), queue.Queue.qsize),
    "stack": (contextlib.ExitStack, lambda s: s.callback(print), lambda s: len(s._exit_callbacks)),
    "warnings": (
        lambda: warnings.catch_warnings(record=True),
        warnings.catch_warnings.__enter__,
        lambda w: w._entered,
    ),
    "parser": (
        parser,
        lambda p: p.add_argument("--more", default=1),
        lambda p: vars(p.parse_args([])),
    ),
    "config": (configparser.ConfigParser, lambda c: c.add_section("a"), lambda c: c.sections()),
    "module": (nn.ReLU, lambda m: m.eval(), lambda m: m.training),
    "fraction": (lambda: [Fraction(1, 3)], lambda f: f.append(1), list),
    "path": (lambda: [pathlib.Path("a")], lambda p: p.append(1), list),
    "error": (lambda: ValueError("a"), lambda e: e.add_note("b"), lambda e: vars(e)),
    "handler": (lambda: logging.StreamHandler(), lambda h: h.setLevel(30), lambda h: h.level),
    "weak values": (
        weakref.WeakValueDictionary,
        lambda d: d.update(a=MADE_BEFORE),
        lambda d: len(d),
    ),
    "method": (lambda: [].append, lambda m: m(1), lambda m: m.__self__),
    "no grad": (torch.no_grad, lambda n: setattr(n, "prev", 7), lambda n: n.prev),
    "generator": (
        lambda: torch.Generator(),
        lambda g: g.manual_seed(8),
        lambda g: g.initial_seed(),
    ),
    "simple": (lambda: types.SimpleNamespace(a=1), lambda n: setattr(n, "b", 1), vars),
}
MADE_BEFORE = collections.Counter()


@pytest.mark.parametrize("how", ["returned", "stored", "in a list"])
@pytest.mark.parametrize("name", MADE)
def test_each_call_has_its_own(name, how):
    make, change, seen = MADE[name]

    def function(kept, x):
        if how == "stored":
            kept.made = make()
            return x + 1
        return (x + 1, make()) if how == "returned" else {"x": x + 1, "all": [make()]}

    def run(function):
        kept = types.SimpleNamespace(made=None)
        found, alive = [], []
        for _ in range(3):
            result = function(kept, torch.ones(2))
            made = {
                "returned": lambda r: r[1],
                "in a list": lambda r: r["all"][0],
                "stored": lambda r: kept.made,
            }[how](result)
            found.append(seen(made))
            change(made)
            alive.append(made)
            if name not in ("random", "numpy"):
                found.append(seen(made))
        assert len({*map(id, alive)}) == 3
        return found, {type(made) for made in alive}

    assert run(funcaot.compile(function, backend=COMPILER)) == run(function)


class Pooled(type):
    made = {}

    def __call__(cls, *given):
        if given not in Pooled.made:
            Pooled.made[given] = super().__call__(*given)
        return Pooled.made[given]


class Interned(metaclass=Pooled):
    def __init__(self, name):
        self.name = name


class Plain:
    pass


@functools.lru_cache
def cached(size):
    return collections.Counter("a" * size)


@functools.lru_cache
def cached_of_the_user(name):
    return Plain()


KEPT = {
    "a library's object in a cache": lambda: cached(3),
    "a user's object in a cache": lambda: cached_of_the_user("a"),
    "a registry": lambda: logging.getLogger("tests.new_objects"),
    "a pool": lambda: Interned("a"),
    "a name": lambda: torch.ops.aten.sin,
}


@pytest.mark.parametrize("name", KEPT)
def test_what_somebody_keeps_is_one_thing(name):
    compiled = funcaot.compile(lambda x: (x + 1, KEPT[name]()), backend=COMPILER)
    assert len({id(compiled(torch.ones(2))[1]) for _ in range(3)}) == 1
    assert compiled(torch.ones(2))[1] is KEPT[name]()


@pytest.mark.parametrize("kind", [types.SimpleNamespace, Plain, nn.Identity])
def test_an_object_that_holds_itself(kind):
    def made():
        thing = kind()
        thing.me = [thing]
        return thing

    compiled = funcaot.compile(lambda x: (x + 1, made()), backend=COMPILER)
    for _ in range(2):
        found = compiled(torch.ones(2))[1]
        assert found.me[0] is found


def in_an_argument(x, given):
    given.extend([Plain(), {"a": collections.Counter()}])
    return x + 1, given[-2], given[-1]["a"]


def by_a_closure(x, given):
    made = Plain()
    made.again = lambda: made
    return x + 1, made, made.again


def in_a_class_made_inside(x, given):
    made = Plain()
    type("Made", (), {"kept": made})
    return x + 1, made


def weakly(x, given):
    made = Plain()
    given += [made, weakref.ref(made)]
    return x + 1, made


def among_others(x, given):
    parent = Plain()
    parent.children = [Plain(), Plain()]
    for child in parent.children:
        child.parent = parent
    return x + 1, parent.children[1]


@pytest.mark.parametrize(
    "function", [in_an_argument, by_a_closure, in_a_class_made_inside, weakly, among_others]
)
def test_what_only_the_call_holds_is_its_own(function):
    compiled = funcaot.compile(function, backend=COMPILER)
    alive = [compiled(torch.ones(2), [])[1:] for _ in range(3)]
    things = [thing for each in alive for thing in each]
    assert len({*map(id, things)}) == len(things)
    assert len(compiled.entries) == 1
