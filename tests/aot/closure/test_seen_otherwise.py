"""What code sees of objects though no code names it: which one it is, and what it holds.

Each program is called with objects that are new, the same, or others than before, and must give
what eager gives: an identity that became a number or a text, an object that the result hides,
attributes that a pattern, a protocol, a format or a copy looks for.
"""

import operator
import pickle
import typing
import weakref
from argparse import Namespace
from types import SimpleNamespace

import pytest
import torch

import funcaot


class Thing:
    def __init__(self, n=2, **more):
        self.n = n
        self.__dict__.update(more)


class Placed(Thing):
    __match_args__ = ("n", "label")


@typing.runtime_checkable
class HasExtra(typing.Protocol):
    extra: int

    def method(self): ...


def x():
    return torch.tensor([1.0, 2.0, 3.0])


def things():
    return [Thing(n) for n in (1, 2, 2, 0)]


def results(function, calls, look):
    """What a function gives for each call, in a form that compares."""
    return [look(function(x(), *arguments), *arguments) for arguments in calls]


# --- an object that the result hides --------------------------------------------------------------

HIDING = {
    "weak": (lambda x, a: (weakref.ref(a), x), lambda got, a: got[0]() is a),
    "weak in a list": (lambda x, a: ([weakref.ref(a)], x), lambda got, a: got[0][0]() is a),
    "exception": (lambda x, a: (ValueError(a), x), lambda got, a: got[0].args[0] is a),
    "exception of a list": (lambda x, a: (KeyError([a]), x), lambda got, a: got[0].args[0][0] is a),
    "text": (lambda x, a: (x, f"{a}"), lambda got, a: got[1] == repr(a)),
    "text in a list": (lambda x, a: (x, [str([a])]), lambda got, a: got[1] == [str([a])]),
    "repr": (lambda x, a: (x, repr(a), str(a)), lambda got, a: got[1:] == (repr(a), str(a))),
    "key": (lambda x, a: {repr(a): x}, lambda got, a: [*got] == [repr(a)]),
    "method": (lambda x, a: (a.__eq__, x), lambda got, a: got[0].__self__ is a),
}


@pytest.mark.parametrize("name", HIDING)
def test_hidden_in_the_result(name):
    function, look = HIDING[name]
    compiled = funcaot.compile(function, backend="eager")
    for a in (kept := things()) + kept:
        assert look(compiled(x(), a), a)


def test_text_that_is_stored():
    log = []

    def function(x, a):
        log.append(repr(a))
        return x * 2

    compiled = funcaot.compile(function, backend="eager")
    for a in (kept := things()):
        compiled(x(), a)
    assert log == [repr(a) for a in kept]


# --- which object it is, by another name ----------------------------------------------------------

number_of = id
hash_of = object.__hash__
asks_hash = operator.methodcaller("__hash__")
WHICH = {
    "alias of id": (id, lambda table: lambda x, a: x * table.get(number_of(a), 9.0)),
    "mapped": (id, lambda table: lambda x, a: x * table.get(next(map(id, [a])), 9.0)),
    "method": (hash, lambda table: lambda x, a: x * table.get(a.__hash__(), 9.0)),
    "text": (repr, lambda table: lambda x, a: x * table.get(f"{a}", 9.0)),
    "hash of object": (hash, lambda table: lambda x, a: x * table.get(hash_of(a), 9.0)),
    "methodcaller": (hash, lambda table: lambda x, a: x * table.get(asks_hash(a), 9.0)),
}


@pytest.mark.parametrize("name", WHICH)
def test_looked_up_by_which_it_is(name):
    key, make = WHICH[name]
    kept = things()
    function = make({key(a): float(i) for i, a in enumerate(kept[1:])})
    calls = [(a,) for a in kept * 2]
    compiled = funcaot.compile(function, backend="eager")
    look = lambda got, a: got.tolist()  # noqa: E731
    assert results(compiled, calls, look) == results(function, calls, look)


# --- attributes that nothing names ----------------------------------------------------------------


def matched(x, a):
    match a:
        case Thing(n=1):
            return x * 2
        case Thing(n=2, extra=int()):
            return x * 3
        case Thing(n=n):
            return x * n * 5


def matched_by_place(x, a):
    match a:
        case Placed(1):
            return x * 2
        case Placed(2, "first"):
            return x * 3
        case Placed(n):
            return x * n * 5


def of_new(x, a):
    return x * (2 if a == SimpleNamespace(n=1) or a == Namespace(n=1) else 3)


ATTRIBUTES = {
    "case": (matched, Thing),
    "case by place": (matched_by_place, Placed),
    "protocol": (lambda x, a: x * (2 if isinstance(a, HasExtra) else 3), Thing),
    "format": (lambda x, a: (x, f"{a.n}"), Thing),
    "format_map": (lambda x, a: (x, "{a.n}".format_map({"a": a})), Thing),
    "format of data": (lambda x, a: (x, TEXTS[0].format(a)), Thing),
    "pickle": (lambda x, a: x * len(pickle.dumps(a)), Thing),
    "equal namespaces": (of_new, SimpleNamespace),
    "equal namespaces of arguments": (of_new, Namespace),
    "text of a namespace": (lambda x, a: (x, repr(a)), SimpleNamespace),
    "namespace in": (lambda x, a: x * (a in [SimpleNamespace(n=1), 5]), SimpleNamespace),
}
TEXTS = ["{0.n}"]


@pytest.mark.parametrize("name", ATTRIBUTES)
def test_attributes_that_nothing_names(name):
    function, kind = ATTRIBUTES[name]
    calls = [
        (kind(n=n, **more),)
        for more in ({}, {"extra": 1}, {"extra": 2, "method": 3}, {"label": "first"}, {})
        for n in (3, 1, 2)
    ]
    compiled = funcaot.compile(function, backend="eager")
    look = lambda got, a: str(got)  # noqa: E731
    assert results(compiled, calls, look) == results(function, calls, look)


# --- tensors as keys ------------------------------------------------------------------------------


@pytest.mark.parametrize("make", [torch.ones, lambda n: torch.nn.Parameter(torch.ones(n))])
def test_tensors_as_keys(make):
    one, other, third = make(3), make(3), make(3)

    def changes(table):
        yield one
        table[one] = 5.0
        yield one
        yield other
        yield third
        table[other] = torch.full((3,), 2.0)
        yield other
        yield one
        del table[one]
        yield one
        table[third] = 7
        yield third

    def outcomes(compiled_by):
        table = {one: 2.0, other: 3.0}
        key = one
        function = compiled_by(lambda x: x * table.get(key, 9.0))
        found = []
        for key in changes(table):  # noqa: B007 - the function reads it
            found.append(function(x()).tolist())
        return found

    compiled = outcomes(lambda function: funcaot.compile(function, backend="eager"))
    assert compiled == outcomes(lambda function: function)
