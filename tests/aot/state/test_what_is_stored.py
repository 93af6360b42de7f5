"""What a function stores in attributes, items, globals and closure variables, against eager.

Each statement is compiled inside of a function and called three times; between the calls, nothing
happens or everything is put back. After each call, all that it can have changed is compared, what
is one object in two places included.
"""

import collections
import itertools
import re
import types

import pytest
import torch

import funcaot
from funcaot.errors import UnsupportedError
from tests.hostile import COMPILER

PLACES = (
    "o.n",
    "o.d['a']",
    "o.l[0]",
    "o.o.n",
    "K.n",
    "g['n']",
    "o.d['new']",
    "o.o.new",
    "K.new",
    "o.t",
    "o.d['t']",
    "o.l[1]",
    "o.slots.a",
)
VALUES = (
    "5",
    "0",
    "'s'",
    "None",
    "(1, 2)",
    "x * 2",
    "x",
    "y",
    "x.shape",
    "[1]",
    "[x * 2]",
    "{'k': x * 2}",
    "{3}",
    "bytearray(b'a')",
    "x.dim() * 2",
    "o.n + 1",
    "torch.zeros(2)",
    "o",
    "o.l",
    "x.dtype",
    "float('nan')",
    "-0.0",
    "lambda: 1",
    "O()",
)
OTHERS = """
o.d.clear(); o.l.clear()
o.q.clear(); o.s.clear()
o.d.pop('a'); o.l.pop()
o.d.pop('t'); o.l.pop(0)
o.l.append(3); o.q.append(4)
o.l.append(x * 2); o.q.append(x * 2)
o.q.appendleft(4); o.l.insert(0, x)
o.q.popleft(); o.q.rotate(1)
o.l.reverse(); o.l.extend([1, x * 2])
o.l += [2]
o.l[:] = [x]
o.l[:] = []
del o.l[0]; del o.d['a']
del o.n
del o.t
o.d.update(a=2, u=x * 2)
o.d.setdefault('z', 3); o.d.setdefault('y', x * 2)
o.d.popitem()
o.s.add(2); o.s.discard(1)
o.s.add(1)
o.s |= {5}
o.n += 1
o.n -= 2
o.n = o.n + 3
o.n *= 2
o.n += 0.5
o.n += x.dim(); o.o.n += 1
o.n = 3; o.n += 1
o.n = 0
o.t = o.t + x
o.t += x
o.t.add_(x)
o.d['t'] += x
o.d['a'] += 1
o.l[0] += 1
o.d['a'] = 3; o.d['a'] += 1
o.l[1] = o.l[1] + x
o.d |= {'u': 1}
o.d = {}
o.l = []
o.d = dict(a=x * 2)
o.l = [*o.l, 1]
o.l = o.l + [x * 2]
o.__dict__['n'] = 7; vars(o)['m'] = 3
setattr(o, 'n', 9); setattr(o, 'm', x * 2)
o.l[0], o.n = o.n, o.l[0]
o.t, o.d['t'] = o.d['t'], o.t
o.n = o.n or 4
o.n = max(o.n, 3)
o.d['a'] = o.d.get('a', 0) + 1
o.o = O()
o.o = O(); o.o.t = x * 2
K.n += 1
K.t = x * 2
o.t = None; o.t = x * 3
o.n = 3; o.n = 0
o.d['a'] = 2; del o.d['a']
o.l.append(1); o.l.pop()
gg = 5
gg = x * 2
gg += 1
gg = 0
nl = 5
nl += 1
nl = x * 2
o.d[x.shape[0]] = 1; o.d[(1, 2)] = x * 2
o.n = not o.n
o.d['l'] = o.l; o.d['d'] = o.d
o.k = o.l; o.m = [o.l, o.d]
x.foo = 3; y.foo = 3
""".strip().splitlines()
STATEMENTS = [f"{place} = {value}" for place in PLACES for value in VALUES] + OTHERS
RESULTS = ("x * 2", "(x * 2, o.d, [o.d, o.l])", "o.l")


class Thing:
    """An object with attributes."""


class Kind:
    """A class with attributes."""


class Slots:
    """An object with slots."""

    __slots__ = ("a",)


def reset(o, space):
    o.n, o.o, o.t, o.slots = 0, Thing(), torch.zeros(2), Slots()
    o.o.n = o.slots.a = Kind.n = space["gg"] = space["g"]["n"] = 0
    o.d = {"a": 1, "t": torch.zeros(2)}
    o.l, o.s = [1, torch.zeros(2)], {1}
    o.q = collections.deque([1, torch.zeros(2)], maxlen=3)
    Kind.t = None
    if hasattr(Kind, "new"):
        del Kind.new


def put_back(o, space):
    """Change everything in its place, so that containers stay the objects that they were."""
    d, l, s, q = o.d, o.l, o.s, o.q  # noqa: E741
    reset(o, space)
    if isinstance(d, dict) and isinstance(l, list):
        d.clear()
        d.update(o.d)
        l[:] = o.l
        o.d, o.l, o.s, o.q = d, l, s, q


def made(statement, result):
    space = {"torch": torch, "K": Kind, "O": Thing, "g": {"n": 0}}
    source = f"""
def make(o):
    nl = 0
    def function(x, y):
        global gg
        nonlocal nl
        {statement}
        return {result}
    return function, lambda: nl
"""
    exec(source, space)
    o = Thing()
    reset(o, space)
    return (space, o, *space["make"](o))


def described(*things, names):
    """What things consist of, with numbers for objects that are met again."""
    numbers = {}

    def of(value):
        if isinstance(value, torch.Tensor):
            return names.get(id(value), "tensor"), value.detach().tolist()
        containers = (list, dict, set, bytearray, collections.deque, Thing, Slots)
        if isinstance(value, containers):
            if id(value) in numbers:
                return f"again {numbers[id(value)]}"
            numbers[id(value)] = len(numbers)
        kind = type(value).__name__
        if isinstance(value, (list, tuple, collections.deque)):
            return kind, [of(item) for item in value]
        if isinstance(value, dict):
            return kind, [(repr(key), of(item)) for key, item in value.items()]
        if isinstance(value, Thing):
            return kind, [(key, of(item)) for key, item in vars(value).items()]
        if isinstance(value, Slots):
            return kind, of(getattr(value, "a", "nothing"))
        return kind, re.sub(" at 0x.*>", ">", repr(value))

    return [of(thing) for thing in things]


def runs(statement, result, *, resets, backend=None):
    """What three calls do; None if they are refused."""
    space, o, function, closed_over = made(statement, result)
    call = function if backend is None else funcaot.compile(function, backend=backend)
    found = []
    for number in range(3):
        x, y = torch.arange(2.0) + number, torch.ones(2)
        try:
            outcome = call(x, y)
        except UnsupportedError as error:
            return None if error.remedy else "an error without a remedy"
        except Exception as error:  # noqa: BLE001 - whatever eager raises
            outcome = type(error).__name__
        names = {id(x): "x", id(y): "y"}
        things = (o, outcome, space["gg"], space["g"], closed_over(), vars(x), vars(y))
        kind = {key: value for key, value in vars(Kind).items() if not key.startswith("__")}
        kind.pop("_funcaot_class", None)
        found.append(described(*things, kind, names=names))
        if isinstance(outcome, tuple):
            outcome[2].append(number)  # what came back is the caller's
        if resets:
            put_back(o, space)
    return found


def agrees(statement, result, backend):
    for resets in (False, True):
        expected = runs(statement, result, resets=resets)
        got = runs(statement, result, resets=resets, backend=backend)
        assert got is None or got == expected, (statement, result, resets)


@pytest.mark.parametrize("statement", STATEMENTS)
def test_against_eager(statement):
    agrees(statement, RESULTS[1], "eager")


@pytest.mark.slow
@pytest.mark.parametrize("statement", STATEMENTS)
def test_other_results(statement):
    agrees(statement, RESULTS[0], "eager")
    agrees(statement, RESULTS[2], COMPILER)


def test_few_are_refused():
    """Nothing in the table is refused, so that none of these tests is empty."""
    some = itertools.islice(STATEMENTS, 0, None, 7)
    assert all(runs(s, RESULTS[1], resets=False, backend="eager") is not None for s in some)


class Numbered:
    count = 0


class OneSlot:
    __slots__ = ("count",)


def counted_in_cell():
    count = 0

    def function(x):
        nonlocal count
        count += 2
        return x.sin()

    return function, lambda: count


def counted_on(holder):
    holder.count = 0

    def function(x):
        holder.count += 2
        return x.sin()

    return function, lambda: holder.count


COUNTERS = {
    "a cell": counted_in_cell,
    "a class": lambda: counted_on(Numbered),
    "a slot": lambda: counted_on(OneSlot()),
    "an attribute": lambda: counted_on(types.SimpleNamespace()),
}


@pytest.mark.parametrize("where", COUNTERS)
def test_a_count_that_other_code_of_the_function_reads(where):
    """The function's own code doesn't read it, so nothing compared it: it stayed what it was."""
    function, left = COUNTERS[where]()
    function.left = left
    compiled = funcaot.compile(function, backend="eager")
    found = []
    for _ in range(3):
        compiled(torch.ones(3))
        found.append(left())
    assert found == [2, 4, 6]
