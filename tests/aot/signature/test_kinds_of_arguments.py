"""What isn't a tensor, among the arguments and around: told apart as eager tells it apart."""

import array
import collections
import decimal
import types

import numpy as np
import pytest
import torch

import funcaot
from funcaot.errors import UnsupportedError
from tests.hostile import COMPILER

X = torch.arange(3.0)


def texts(x, value):
    """All that code can tell of a value, beside a result."""
    items = [*value] if hasattr(value, "__iter__") and not isinstance(value, str | bytes) else []
    return x * 2, type(value).__name__, str(value), [(type(item).__name__, item) for item in items]


# Values of one kind that are equal, or hash the same, or differ only in what they hold.
TOLD_APART = {
    "types in a frozenset": [frozenset({v}) for v in (1, 1.0, True, 0.0, -0.0)],
    "order of a frozenset": [frozenset([0, 8]), frozenset([8, 0])],
    "nested frozensets": [frozenset({(1,)}), frozenset({(1.0,)}), frozenset({(True,)})],
    "types in a set": [{1}, {1.0}, {True}, {0.0}, {-0.0}, set()],
    "order of a set": [{0, 8}, set(range(8, -1, -8))],
    "empty ranges": [range(0), range(1, 1), range(2, 2, 3), range(0, 3, 2), range(0, 4, 2)],
    "zeros of NumPy": [np.float64(v) for v in (0.0, -0.0, float("nan"), 1.0)],
    "numbers of NumPy": [np.float32(1), np.int32(1), np.int64(1), np.bool_(True), np.complex64(1)],
    "decimals": [decimal.Decimal("1.0"), decimal.Decimal("1.00")],
    "keys of dictionaries": [{v: 1.0} for v in (1, 1.0, True, 0, False, 0.0, -0.0, (1,), (1.0,))],
    "keys of other dictionaries": [
        *(collections.OrderedDict([(v, 1.0), ("a", 2.0)]) for v in (1, 1.0, True)),
        *(
            collections.defaultdict(int, {v: 1.0})
            for v in (1, 1.0, frozenset({1}), frozenset({1.0}))
        ),
    ],
    "arrays": [np.ones(2), np.zeros(2), np.ones(2, np.float32), np.ones((2, 1)), np.array([1, -1])],
    "rows of bytes": [bytearray(b"a"), bytearray(b"b"), array.array("i", [1]), memoryview(b"ab")],
    "proxies": [types.MappingProxyType({"a": 1}), types.MappingProxyType({"a": 1.0})],
    "keys": [{"a": 1}.keys(), {"b": 1}.keys(), {"b": 1, "a": 1}.keys(), {1: 1}.keys()],
    "values": [{"a": 1}.values(), {"a": 1.0}.values(), collections.OrderedDict(a=1).values()],
    "items": [{"a": 1}.items(), {"a": True}.items(), {"b": 1}.items()],
    "slices": [slice(1), slice(0, 1), slice(None, None, 2)],
}


def same(one, other):
    assert torch.equal(one[0], other[0])
    assert repr(one[1:]) == repr(other[1:])


@pytest.mark.parametrize("values", TOLD_APART.values(), ids=TOLD_APART)
def test_arguments_are_told_apart(values):
    compiled = funcaot.compile(texts, backend=COMPILER)
    for value in (*values, *values):
        same(compiled(X, value), texts(X, value))
    assert len(compiled.entries) <= len(values)


@pytest.mark.parametrize("kind", ["types in a set", "order of a set", "values", "proxies"])
@pytest.mark.parametrize("where", ["closed over", "in a list"])
def test_surroundings_are_told_apart(kind, where):
    box = [None]
    value = None

    def closed_over(x):
        return texts(x, value)

    def in_a_list(x):
        return texts(x, box[0])

    function = closed_over if where == "closed over" else in_a_list
    compiled = funcaot.compile(function, backend=COMPILER)
    for now in TOLD_APART[kind] * 2:
        value = box[0] = now
        same(compiled(X), function(X))


def change(thing):
    if isinstance(thing, set):
        thing.add(7)
    elif isinstance(thing, dict):
        thing["new"] = 5.0
    else:
        thing[0] = 9


CHANGING = {
    "a set": lambda: ({1, 2},) * 2,
    "an array": lambda: (np.ones(2),) * 2,
    "bytes": lambda: (bytearray(b"ab"),) * 2,
    "keys": lambda: (lambda d: (d.keys(), d))({"a": 1.0}),
    "values": lambda: (lambda d: (d.values(), d))({"a": 1.0}),
    "a proxy": lambda: (lambda d: (types.MappingProxyType(d), d))({"a": 1.0}),
}


@pytest.mark.parametrize("make", CHANGING.values(), ids=CHANGING)
@pytest.mark.parametrize("closed", [False, True])
def test_what_changes_between_calls(make, closed):
    thing, changed = make()
    compiled = funcaot.compile((lambda x: texts(x, thing)) if closed else texts, backend=COMPILER)
    arguments = (X,) if closed else (X, thing)
    for _ in range(2):
        same(compiled(*arguments), texts(X, thing))
        change(changed)
        same(compiled(*arguments), texts(X, thing))


@pytest.mark.parametrize("make", CHANGING.values(), ids=CHANGING)
def test_what_is_returned_is_the_calls_own(make):
    compiled = funcaot.compile(lambda x, thing: (x * 2, [thing]), backend=COMPILER)
    for _ in range(3):
        thing, _ = make()
        assert compiled(X, thing)[1][0] is thing


def test_a_set_that_is_written_to():
    def add(x, seen):
        seen.add(3)
        return x + len(seen)

    compiled = funcaot.compile(add, backend=COMPILER)
    for _ in range(2):
        one, other = {1, 2}, {1, 2}
        for _ in range(2):
            assert torch.equal(compiled(X, one), add(X, other))
            assert one == other


def test_an_array_that_is_written_to():
    def write(x, thing):
        thing[0] = 5
        return x * 2

    thing = np.ones(2)
    with pytest.raises(UnsupportedError, match="a ndarray, holds"):
        funcaot.compile(write, backend=COMPILER)(X, thing)
    assert thing.tolist() == [1, 1]


def test_sets_and_views_of_tensors():
    def add(x, tensors):
        return x + sum(tensors)

    compiled = funcaot.compile(add, backend=COMPILER)
    for _ in range(3):
        tensors = [torch.randn(3, requires_grad=True) for _ in range(2)]
        found = compiled(X, {tensors[0]})
        assert torch.equal(found, add(X, {tensors[0]}))
        (gradient,) = torch.autograd.grad(found.sum(), tensors[0])
        assert gradient.tolist() == [1, 1, 1]
        view = dict(enumerate(tensors)).values()
        assert torch.equal(compiled(X, view), add(X, view))


def test_a_view_of_a_dictionary_shows_the_tensors_that_are_there():
    known = {"a": X}
    view = known.values()
    compiled = funcaot.compile(lambda x: x + sum(view), backend=COMPILER)
    for factor in (1, 2, 3):
        known["a"] = X * factor
        assert torch.equal(compiled(X), X + X * factor)
    known["b"] = X
    assert torch.equal(compiled(X), X + X * 4)


def test_an_array_in_the_place_of_an_equal_one():
    table = np.ones(3, np.float32)
    compiled = funcaot.compile(lambda x: x * torch.from_numpy(table), backend=COMPILER)
    assert torch.equal(compiled(X), X)
    before, table = table, np.ones(3, np.float32)
    before[:] = 7
    assert torch.equal(compiled(X), X)


def test_arrays_as_arguments_and_their_tensors():
    def scale(x, table):
        return x * torch.from_numpy(table) + float(table.sum())

    compiled = funcaot.compile(scale, backend=COMPILER)
    for factor in (1, 1, 2, 1):
        table = np.full(3, factor, np.float32)
        assert torch.equal(compiled(X, table), scale(X, table))
        table[:] = 9
    assert len(compiled.entries) == 2
