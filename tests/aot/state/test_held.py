"""What arrays, streams in memory and objects of C hold: read in each call, never written once."""

import array
import collections
import contextlib
import contextvars
import ctypes
import decimal
import hashlib
import io
import mmap
import queue
import sys
import threading
import types

import numpy as np
import pytest
import torch

import funcaot
from funcaot.errors import UnsupportedError


class Structure(ctypes.Structure):
    _fields_ = (("a", ctypes.c_int),)


class OwnArray(np.ndarray):
    pass


class OwnStream(io.BytesIO):
    pass


def variable():
    made = contextvars.ContextVar("made")
    made.set(1)
    return made


def add(thing, key=0):
    thing[key] = thing[key] + 1


def append(stream):
    stream.seek(0, 2)
    stream.write(b"b" if isinstance(stream, io.BytesIO) else "b")


# How a thing is made, what is read of it as a number, and how it changes.
THINGS = {
    "array": (lambda: np.arange(3.0), lambda a: float(a.sum()), add),
    "array out": (lambda: np.arange(3.0), lambda a: a[1], lambda a: np.add(a, 1, out=a)),
    "array sorted": (lambda: np.array([3.0, 1.0]), lambda a: a[0], lambda a: a.sort()),
    "array at": (lambda: np.arange(3.0), lambda a: a[1], lambda a: np.add.at(a, [1, 1], 1)),
    "array of objects": (lambda: np.array([1, 2], object), lambda a: a[0], add),
    "array without dimensions": (lambda: np.array(2.0), float, lambda a: add(a, ())),
    "structured": (
        lambda: np.zeros(2, [("a", int)]), lambda a: int(a["a"][0]), lambda a: add(a["a"]),
    ),
    "large array": (lambda: np.zeros(100_000), lambda a: a[5], lambda a: add(a, 5)),
    "own array": (lambda: np.arange(3.0).view(OwnArray), lambda a: float(a.sum()), add),
    "mask": (
        lambda: np.ma.array([1.0, 2.0], mask=[0, 0]), lambda a: float(a.sum()),
        lambda a: a.mask.__setitem__(0, True),
    ),
    "bytearray": (lambda: bytearray(b"abc"), lambda b: b[0], add),
    "longer bytearray": (lambda: bytearray(b"abc"), len, lambda b: b.extend(b"d")),
    "memoryview": (lambda: memoryview(bytearray(b"abc")), lambda b: b[0], add),
    "row": (lambda: array.array("i", [1, 2]), lambda b: b[0], add),
    "longer row": (lambda: array.array("i", [1, 2]), len, lambda b: b.append(3)),
    "bytes stream": (io.BytesIO, lambda s: len(s.getvalue()), append),
    "own stream": (OwnStream, lambda s: len(s.getvalue()), append),
    "place in a stream": (lambda: io.BytesIO(b"abcdef"), lambda s: s.tell(), lambda s: s.read(1)),
    "text stream": (io.StringIO, lambda s: len(s.getvalue()), append),
    "structure": (
        lambda: Structure(1), lambda c: c.a, lambda c: setattr(c, "a", c.a + 1),
    ),
    "number of C": (
        lambda: ctypes.c_int(1), lambda c: c.value, lambda c: setattr(c, "value", c.value + 1),
    ),
    "array of C": (lambda: (ctypes.c_int * 2)(1, 2), lambda c: c[0], add),
    "mapped memory": (lambda: mmap.mmap(-1, 8), lambda m: m[0], add),
    "context variable": (variable, lambda v: v.get(), lambda v: v.set(v.get() + 1)),
    "decimals": (
        lambda: decimal.Context(prec=3), lambda c: c.prec,
        lambda c: setattr(c, "prec", c.prec + 1),
    ),
    "digest": (lambda: hashlib.sha256(b"a"), lambda h: h.digest()[0], lambda h: h.update(b"b")),
}  # fmt: skip
HOLDERS = {
    "closure": lambda thing: (thing, lambda held: held),
    "attribute": lambda thing: (types.SimpleNamespace(a=thing), lambda held: held.a),
    "list": lambda thing: ([thing], lambda held: held[0]),
}


@pytest.mark.parametrize("holder", HOLDERS)
@pytest.mark.parametrize("name", THINGS)
def test_what_others_change_is_seen(name, holder):
    make, read, change = THINGS[name]
    found = {}
    for kind in ("eager", "compiled"):
        thing = make()
        held, get = HOLDERS[holder](thing)

        def function(x, held=held, get=get):
            return x * read(get(held))

        function = funcaot.compile(function, backend="eager") if kind == "compiled" else function
        found[kind] = []
        for _ in range(3):
            found[kind].append(function(torch.ones(2)).tolist())
            change(thing)
    assert found["compiled"] == found["eager"]


@pytest.mark.parametrize("holder", HOLDERS)
@pytest.mark.parametrize("name", THINGS)
def test_what_a_function_changes_is_refused_and_undone(name, holder):
    make, read, change = THINGS[name]
    thing = make()
    held, get = HOLDERS[holder](thing)

    def function(x):
        change(get(held))
        return x * 2

    before = read(thing)
    compiled = funcaot.compile(function, backend="eager")
    for _ in range(2):
        with pytest.raises(UnsupportedError, match="would happen once"):
            compiled(torch.ones(2))
    if name not in ("digest", "decimals", "array of objects"):
        assert read(thing) == before


def test_what_a_raising_call_writes_is_written_once():
    counts = np.zeros(2)

    @funcaot.compile(backend="eager")
    def function(x):
        counts[0] += 1
        raise ValueError("after a write")

    with pytest.raises(ValueError, match="after a write"):
        function(torch.ones(2))
    assert counts.tolist() == [1, 0]


def test_what_is_printed_is_no_state():
    def function(x):
        sys.stdout.write("once")
        return x * 2

    compiled = funcaot.compile(function, backend="eager")
    with contextlib.redirect_stdout(io.StringIO()) as printed:
        for _ in range(3):
            compiled(torch.ones(2))
    assert printed.getvalue() == "once"
    assert len(funcaot.report(compiled).entries) == 1


def test_arrays_of_its_own_are_written_to():
    def function(x):
        made = np.zeros(3)
        made[1] = 2
        stream = io.StringIO()
        stream.write("ab")
        return x * float(made.sum()) * len(stream.getvalue())

    compiled = funcaot.compile(function, backend="eager")
    for _ in range(3):
        torch.testing.assert_close(compiled(torch.ones(2)), torch.full((2,), 4.0))


@pytest.mark.parametrize("thing", [queue.Queue(), queue.LifoQueue()])
def test_what_counts_for_itself_is_refused(thing):
    def function(x):
        thing.put(1)
        return x * 2

    with pytest.raises(UnsupportedError, match=type(thing).__name__):
        funcaot.compile(function, backend="eager")(torch.ones(2))


def test_a_lock_and_an_event():
    lock, event, seen = threading.Lock(), threading.Event(), collections.deque(maxlen=2)

    def function(x):
        with lock:
            seen.append(1)
        return x * 2 if event.is_set() else x

    compiled = funcaot.compile(function, backend="eager")
    for value in (1.0, 1.0, 2.0, 2.0):
        if value == 2:
            event.set()
        torch.testing.assert_close(compiled(torch.ones(2)), torch.full((2,), value))
    assert not lock.locked()
    assert list(seen) == [1, 1]


HELPER = """
import contextvars, random
KEPT = contextvars.ContextVar("KEPT", default=0)
GENERATOR = random.Random(0)
ROWS = bytearray(b"abc")

def sets(x):
    KEPT.set(KEPT.get() + 1)
    return x * 2

def draws(x):
    return x * GENERATOR.random()

def writes(x):
    ROWS[0] += 1
    return x * 2
"""


@pytest.mark.parametrize(
    ("name", "says"), [("sets", "ContextVar"), ("draws", "random"), ("writes", "ROWS")]
)
def test_what_is_reached_only_while_it_runs(name, says, monkeypatch):
    module = types.ModuleType("reached_while_it_runs")
    exec(HELPER, vars(module))
    monkeypatch.setitem(sys.modules, module.__name__, module)

    def function(x):
        return getattr(sys.modules["reached_" + "while_it_runs"], name)(x)

    with pytest.raises(UnsupportedError, match=says):
        funcaot.compile(function, backend="eager")(torch.ones(2))
    assert (module.KEPT.get(), module.ROWS) == (0, b"abc")


def test_arrays_of_classes_that_mind_how_they_are_read():
    """NumPy's constant ``masked`` lets nobody set its attributes, which reading it would do."""
    held = types.SimpleNamespace(masked=np.ma.masked, rows=np.ma.array([1.0, 2.0]), scale=2.0)

    def scaled(x):
        return x * held.scale if held.masked is not None and held.rows is not None else x

    compiled = funcaot.compile(scaled, backend="eager")
    for change in (
        lambda: None,
        lambda: setattr(held, "scale", 3.0),
        lambda: held.rows.__setitem__(0, 5.0),
        lambda: held.rows.__setitem__(1, np.ma.masked),
    ):
        change()
        assert torch.equal(compiled(torch.ones(2)), scaled(torch.ones(2)))
