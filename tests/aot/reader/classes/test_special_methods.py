"""Special methods that a class gets, or gets others of, between calls: Python asks for them itself.

Nobody's code has their names in it, and those that torch calls run inside of its functions.
"""

import math
from typing import NamedTuple

import numpy as np
import pytest
import torch

import funcaot


class Case(NamedTuple):
    """What a class has, what it gets later, and a program that notices."""

    has: dict
    gets: dict
    program: object


def always(value):
    return lambda *given: value


def add_in_place(thing, x):
    thing += 1
    return x * thing


def enter(thing, x):
    with thing as value:
        return x * value


def store(thing, x):
    thing.k = 4
    return x * thing.k


def write(thing, x):
    y = x.clone()
    y[thing] = 9
    return y


def pair(a, b):
    return {"__len__": always(2), "__getitem__": lambda self, at: (a, b)[at]}


CASES = {
    # What isn't there at first.
    "bool": Case({}, {"__bool__": always(False)}, lambda t, x: x * (2 if t else 5)),
    "len": Case({}, {"__len__": always(0)}, lambda t, x: x * (2 if t else 5)),
    "bool before len": Case(
        {"__len__": always(1)}, {"__bool__": always(False)}, lambda t, x: x * (2 if t else 5)
    ),
    "or": Case({}, {"__bool__": always(False)}, lambda t, x: x * (2 if (t or 1) == 1 else 5)),
    "any": Case({}, {"__bool__": always(False)}, lambda t, x: x * (2 if any([t]) else 5)),
    "eq": Case({}, {"__eq__": always(True)}, lambda t, x: x * (2 if t == 1 else 5)),
    "ne": Case({}, {"__ne__": always(False)}, lambda t, x: x * (2 if t != 1 else 5)),
    "ne by eq": Case({}, {"__eq__": always(True)}, lambda t, x: x * (2 if t != 1 else 5)),
    "in a tuple": Case({}, {"__eq__": always(True)}, lambda t, x: x * (2 if t in (1, 3) else 5)),
    "contains": Case(
        {"__iter__": lambda self: iter((1,))},
        {"__contains__": always(True)},
        lambda t, x: x * (2 if 3 in t else 5),
    ),
    "iter": Case(pair(1, 2), {"__iter__": lambda self: iter((7,))}, lambda t, x: x * sum(t)),
    "reversed": Case(
        pair(3, 4),
        {"__reversed__": lambda self: iter((9,))},
        lambda t, x: x * next(iter(reversed(t))),
    ),
    "getattribute": Case(
        {"k": 2},
        {
            "__getattribute__": lambda t, name: (
                9 if name == "k" else object.__getattribute__(t, name)
            )
        },
        lambda t, x: x * t.k,
    ),
    "getattr": Case({}, {"__getattr__": always(9)}, lambda t, x: x * getattr(t, "k", 2)),
    "hasattr": Case({}, {"__getattr__": always(9)}, lambda t, x: x * (2 + hasattr(t, "k"))),
    "setattr": Case(
        {"k": 2},
        {"__setattr__": lambda self, name, value: object.__setattr__(self, name, value + 1)},
        store,
    ),
    "add in place": Case({"__add__": always(2)}, {"__iadd__": always(7)}, add_in_place),
    "float": Case({"__index__": always(2)}, {"__float__": always(7.0)}, lambda t, x: x * float(t)),
    "int": Case({"__index__": always(2)}, {"__int__": always(7)}, lambda t, x: x * int(t)),
    "str": Case({"__repr__": always("a")}, {"__str__": always("ab")}, lambda t, x: x * len(str(t))),
    "format": Case(
        {"__str__": always("a")}, {"__format__": always("abc")}, lambda t, x: x * len(f"{t}")
    ),
    "callable": Case({}, {"__call__": always(1)}, lambda t, x: x * (2 + callable(t))),
    "dir": Case({}, {"__dir__": always(["a"])}, lambda t, x: x * len(dir(t))),
    # What is another one later.
    "add": Case({"__add__": always(2)}, {"__add__": always(7)}, lambda t, x: x * (t + 1)),
    "lt": Case({"__gt__": always(True)}, {"__gt__": always(False)}, lambda t, x: x * (1 + (t > 1))),
    "hash": Case(
        {"__eq__": always(True), "__hash__": always(1)},
        {"__hash__": always(3)},
        lambda t, x: x * {1: 5}.get(t, 2),
    ),
    "call": Case(
        {"__call__": lambda t, x: x * 2}, {"__call__": lambda t, x: x * 5}, lambda t, x: t(x)
    ),
    "enter": Case(
        {"__enter__": always(2), "__exit__": always(None)}, {"__enter__": always(5)}, enter
    ),
    "math": Case(
        {"__float__": always(4.0)}, {"__float__": always(9.0)}, lambda t, x: x * math.sqrt(t)
    ),
    # What torch asks for.
    "index": Case({"__index__": always(0)}, {"__index__": always(1)}, lambda t, x: x[t] * 2),
    "index among others": Case(
        {"__index__": always(0)}, {"__index__": always(1)}, lambda t, x: x[None, t] * 2
    ),
    "slice": Case({"__index__": always(0)}, {"__index__": always(1)}, lambda t, x: x[t:] * 2),
    "write at an index": Case({"__index__": always(0)}, {"__index__": always(1)}, write),
    "size": Case(
        {"__index__": always(1)}, {"__index__": always(3)}, lambda t, x: x.view(t, -1) * 2
    ),
    "data of a tensor": Case(
        pair(1.0, 2.0), pair(5.0, 6.0), lambda t, x: torch.tensor(t).sum() * x
    ),
    "array": Case(
        {"__array__": lambda self, dtype=None, copy=None: np.ones(3)},
        {"__array__": lambda self, dtype=None, copy=None: np.zeros(3)},
        lambda t, x: torch.from_numpy(np.asarray(t)) * x,
    ),
    "reflected": Case(
        {"__rmul__": lambda self, x: x * 2}, {"__rmul__": lambda self, x: x * 3}, lambda t, x: x * t
    ),
    "torch function": Case(
        {
            "__torch_function__": classmethod(
                lambda cls, func, types, args, kwargs=None: args[0] * 2
            )
        },
        {
            "__torch_function__": classmethod(
                lambda cls, func, types, args, kwargs=None: args[0] * 5
            )
        },
        lambda t, x: torch.add(x, t),
    ),
}


@pytest.mark.parametrize("where", ["own and given", "base and closed over"])
@pytest.mark.parametrize("name", CASES)
def test_special_methods(name, where):
    case, x = CASES[name], torch.arange(1.0, 4.0)
    base = type("Base", (), {})
    kind = type("Kind", (base,), dict(case.has))
    thing = kind()
    thing_is_given = where == "own and given"

    def given(thing, x):
        return case.program(thing, x)

    def closed_over(x):
        return case.program(thing, x)

    function = given if thing_is_given else closed_over
    args = (thing, x) if thing_is_given else (x,)
    compiled = funcaot.compile(function, backend="eager")
    before = function(*args)
    for _ in range(3):
        torch.testing.assert_close(compiled(*args), before)
    for special, method in case.gets.items():
        setattr(kind if thing_is_given or special in case.has else base, special, method)
    after = function(*args)
    assert before.shape != after.shape or not torch.equal(before, after), "nothing changes"
    for _ in range(3):
        torch.testing.assert_close(compiled(*args), after)


@pytest.mark.parametrize("given", [True, False])
def test_objects_that_take_functions_over(given):
    """They are objects like others: their attributes are compared."""

    class Factor:
        def __init__(self, value):
            self.value = value

        @classmethod
        def __torch_function__(cls, func, types, args=(), kwargs=None):
            other, factor = args
            return other * factor.value

    factor, x = Factor(2.0), torch.randn(3)

    def scaled(x, other):
        return torch.add(x, other)

    compiled = funcaot.compile(scaled if given else lambda x: scaled(x, factor), backend="eager")
    for value in (2.0, 2.0, 5.0, 5.0, 3.0):
        factor.value = value
        found = compiled(x, factor) if given else compiled(x)
        torch.testing.assert_close(found, x * value)
