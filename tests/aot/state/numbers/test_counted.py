"""Numbers that a function counts in, wherever they are: two programs for all values.

What an object is and what a function runs may not be assigned inside.
"""

import pytest
import torch

import funcaot
from funcaot.errors import UnsupportedError
from tests.hostile import COMPILER

total = 0.0
COUNTERS = {}


def counter(make):
    COUNTERS[make.__name__] = make
    return make


@counter
def in_a_closure():
    count = 0.0

    def function(x):
        nonlocal count
        count += 1
        return x * count

    return function


@counter
def in_a_closure_of_one_that_is_called():
    count = 0

    def increased():
        nonlocal count
        count += 1
        return count

    return lambda x: x * increased()


@counter
def in_a_global():
    def function(x):
        global total
        total += 1
        return x * total

    return function


@counter
def in_a_class_by_its_name():
    class Counter:
        count = 0.0

        def __call__(self, x):
            Counter.count += 1
            return x * Counter.count

    return Counter()


@counter
def in_a_class_by_its_object():
    class Counter:
        count = 0.0

        def __call__(self, x):
            type(self).count += 1
            return x * self.count

    return Counter()


@counter
def in_an_object():
    class Counter:
        def __init__(self):
            self.count = 0

        def __call__(self, x):
            self.count += 1
            return x * self.count

    return Counter()


@pytest.mark.parametrize("name", COUNTERS)
def test_two_programs(name):
    global total
    found = []
    for called in (lambda f: f, lambda f: funcaot.compile(f, backend=COMPILER)):
        total = 0.0
        function = called(COUNTERS[name]())
        found.append([function(torch.ones(2)).tolist() for _ in range(6)])
    assert found[0] == found[1]
    assert funcaot.report(function).cache_misses == 2


def test_a_number_that_somebody_else_sets():
    scale = 0.0

    def put(value):
        nonlocal scale
        scale = value

    def inner(x):
        return x * scale

    compiled = funcaot.compile(lambda x: inner(x), backend=COMPILER)
    for value in (0.5, 1.5, -2.0, 3.0):
        put(value)
        assert compiled(torch.ones(2)).tolist() == [value, value]
    assert funcaot.report(compiled).cache_misses == 2


RINGS = {
    "a list of tensors": (3, lambda rows, i, x: rows.__setitem__(i % 3, x * 1)),
    "a list of floats": (3, lambda rows, i, x: rows.__setitem__(i % 3, float(i))),
    "by the half": (2, lambda rows, i, x: rows.__setitem__(i // 2 % 2, x * i)),
    "by an index that is added to": (3, lambda rows, i, x: rows.__setitem__((i + 2) % 3 - 1, x)),
}


@pytest.mark.parametrize("name", RINGS)
def test_a_ring_of_rows(name):
    """A place in it is computed of a number that grows; it has a program for each place."""
    count, put = RINGS[name]

    class Ring:
        def __init__(self):
            self.step, self.rows = 0, [0.0] * count

        def __call__(self, x):
            put(self.rows, self.step, x)
            self.step += 1
            return x * sum(self.rows)

    plain, compiled = Ring(), funcaot.compile(Ring(), backend=COMPILER)
    for step in range(20):
        x = torch.full((2,), float(step))
        assert torch.equal(compiled(x), plain(x))
    assert funcaot.report(compiled).cache_misses <= 2 * count + 1


def test_a_remainder_that_is_zero_has_a_sign():
    """Of two zeros, which are equal, Python may tell one by its sign."""

    class Signed:
        value, factor = 1.0, 1.0

        def __call__(self, x):
            return x if (self.value % 2.0 * self.factor).hex()[0] == "0" else -x

    signed = Signed()
    compiled = funcaot.compile(signed, backend=COMPILER)
    for value, factor in ((1.0, 1.0), (2.0, 0.5), (4.0, -1.0), (6.0, 2.0), (8.0, -3.0)):
        signed.value, signed.factor = value, factor
        x = torch.ones(2)
        assert torch.equal(compiled(x), signed(x))


def becomes_another():
    class First:
        factor = 1.0

    class Second:
        factor = 2.0

    thing = First()

    def function(x):
        thing.__class__ = Second
        return x * thing.factor

    return function, lambda: type(thing) is First, "thing.__class__"


def gets_other_defaults():
    def scaled(x, factor=1.0):
        return x * factor

    def function(x):
        scaled.__defaults__ = (2.0,)
        return scaled(x)

    return function, lambda: scaled.__defaults__ == (1.0,), "scaled.__defaults__"


@pytest.mark.parametrize("make", [becomes_another, gets_other_defaults])
def test_what_may_not_be_assigned(make):
    function, is_as_before, name = make()
    with pytest.raises(UnsupportedError, match=f"assigns {name}, which would happen once"):
        funcaot.compile(function, backend=COMPILER)(torch.ones(2))
    assert is_as_before()
