"""A container that a call changes may be one with another in the next call, or be apart again.

Each program changes one container and reads another. Calls in which both are one alternate with
calls in which they aren't; results, and what the containers hold, are those of eager, or an error
says that a container is an argument and something else.
"""

from collections import deque

import pytest
import torch

import funcaot
from funcaot.errors import UnsupportedError

MAKE = {"list": list, "dict": dict, "set": set, "deque": deque}


class Holder:
    def __init__(self, kept):
        self.kept = kept


def change(container, x):
    if isinstance(container, dict):
        container["k"] = x * 2
    elif isinstance(container, set):
        container.add(7)
    else:
        container.append(x * 2)


def read(container, x):
    if isinstance(container, dict):
        return container.get("k", x) * 3
    return x * len(container)


def given(compiled_by):
    def function(x, a, b):
        change(a.kept, x)
        return read(b.kept, x)

    compiled = compiled_by(function)
    return lambda x, a, b: compiled(x, Holder(a), Holder(b))


def closed_over(compiled_by):
    first, second = Holder(None), Holder(None)

    def function(x):
        change(first.kept, x)
        return read(second.kept, x)

    compiled = compiled_by(function)

    def call(x, a, b):
        first.kept, second.kept = a, b
        return compiled(x)

    return call


def in_cells(compiled_by):
    first = second = None

    def function(x):
        change(first, x)
        return read(second, x)

    compiled = compiled_by(function)

    def call(x, a, b):
        nonlocal first, second
        first, second = a, b
        return compiled(x)

    return call


def in_a_list(compiled_by):
    both = [None, None]

    def function(x):
        change(both[0], x)
        return read(both[1], x)

    compiled = compiled_by(function)

    def call(x, a, b):
        both[:] = a, b
        return compiled(x)

    return call


def both_changed(compiled_by):
    def function(x, a, b):
        change(a.kept, x)
        change(b.kept, x + 1)
        return read(a.kept, x)

    compiled = compiled_by(function)
    return lambda x, a, b: compiled(x, Holder(a), Holder(b))


def argument_and_closed_over(compiled_by):
    held = Holder(None)

    def function(x, a):
        change(a, x)
        return read(held.kept, x)

    compiled = compiled_by(function)

    def call(x, a, b):
        held.kept = b
        return compiled(x, a)

    return call


def closed_over_and_argument(compiled_by):
    held = Holder(None)

    def function(x, b):
        change(held.kept, x)
        return read(b, x)

    compiled = compiled_by(function)

    def call(x, a, b):
        held.kept = a
        return compiled(x, b)

    return call


PROGRAMS = [
    *(given, closed_over, in_cells, in_a_list, both_changed),
    *(argument_and_closed_over, closed_over_and_argument),
]


def outcome(call, make, one):
    a, b = make(), make()
    if one:
        b = a
    x = torch.tensor([1.0, 2.0, 3.0])
    try:
        value = call(x, a, b)
    except UnsupportedError:
        return None
    values = [*a.values(), *b.values()] if isinstance(a, dict) else [*a, *b]
    held = [v.tolist() if isinstance(v, torch.Tensor) else v for v in values]
    return value.tolist(), len(a), len(b), held


@pytest.mark.parametrize("first", [False, True], ids=["apart first", "one first"])
@pytest.mark.parametrize("kind", MAKE)
@pytest.mark.parametrize("program", PROGRAMS, ids=lambda program: program.__name__)
def test_one_or_two(program, kind, first):
    eager = program(lambda function: function)
    compiled = program(lambda function: funcaot.compile(function, backend="eager"))
    refused = 0
    for one in (first, not first, first, not first, False):
        found = outcome(compiled, MAKE[kind], one)
        refused += found is None
        assert found in (None, outcome(eager, MAKE[kind], one))
    may_refuse = program in (argument_and_closed_over, closed_over_and_argument)
    assert refused <= (2 if first is False else 3) * may_refuse


def test_what_is_only_added_to_makes_no_programs():
    held = Holder([])

    def function(x):
        held.kept.append([x * 2])
        return x * 3

    compiled = funcaot.compile(function, backend="eager")
    for _ in range(5):
        compiled(torch.ones(3))
    assert len(held.kept) == 5
    assert funcaot.report(compiled).cache_misses == 1
