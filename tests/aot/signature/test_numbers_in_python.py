"""Python's own functions of open sizes and numbers say what they say of Python's numbers.

Each function is called with a number from each source, for values that change from call to call, so
that it is open from the second call on. Its value, with the types in it, is that of eager.
"""

import collections
import copy
import decimal
import enum
import fractions
import functools
import itertools
import json
import math
import operator
import pickle
import statistics
import struct
import types

import numpy as np
import pytest
import torch

import funcaot


class Kind(enum.IntEnum):
    THREE = 3
    FOUR = 4
    FIVE = 5


@functools.singledispatch
def dispatched(number):
    return "another"


dispatched.register(int)(lambda number: "int")
dispatched.register(float)(lambda number: "float")


def matched(number):
    match number:
        case bool():
            return "bool"
        case 3 | 4:
            return "three or four"
        case int(value) if value > 5:
            return value
        case float():
            return "float"
        case int():
            return "int"
    return "another"


def matched_in(number):
    match (number, 1):
        case (int() as value, 1):
            return value
        case (float(), int()):
            return "float"
    return "another"


FUNCTIONS = {
    "match": matched,
    "match in a tuple": matched_in,
    "dispatch": dispatched,
    "class": lambda n: (type(n).__name__, n.__class__ is int, type(n) in (int, float)),
    "table of classes": lambda n: {int: "i", float: "f"}[type(n)],
    "isinstance": lambda n: [isinstance(n, kind) for kind in (int, float, bool)],
    "powers": lambda n: (2**n, n**2, pow(n, 3), n**0.5, 3 ** (n * 40), n**-1),
    "remainders": lambda n: (-n % 3, n % -3, 7 % n, n % 0.7, n // 0.7, -7 // n, n // -2),
    "divmod": lambda n: (divmod(n, 3), divmod(7, n), divmod(-n, 3)),
    "times zero": lambda n: (0 * n, [i * n for i in range(2)], n - n, (n + 1) // 2 * 2 - n),
    "rounded": lambda n: (round(n), round(n / 3, 2), round(n / 2), int(n), float(n)),
    "compared": lambda n: (n < 4, n == 4.0, 3 < n < 5, n in (3, "a"), n is None, n == "a"),
    "least": lambda n: (min(n, 4), max(n, 4.5), sorted([n, 4, 1, 3.5]), sum([n, 0.5])),
    "mathematics": lambda n: (math.sqrt(n), math.log2(n), math.floor(n / 2), math.hypot(n, 1)),
    "questions of mathematics": lambda n: (
        (math.isfinite(n), math.isnan(n), math.isinf(n)),
        (math.fabs(n), math.pow(n, 2), math.exp(n / 9), math.trunc(n), math.isclose(n, 4)),
    ),
    "indices": lambda n: (list(range(n)), [1, 2, 3, 4, 5, 6, 7][n], "abcdefg"[:n], [0] * n),
    "bits": lambda n: (n << 2, n >> 1, n & 3, n | 8, n ^ 5, ~n, n.bit_length()),
    "text": lambda n: (f"{n:>6}", f"{n!r}", str(n), f"{[n]}", "%d" % n),  # noqa: UP031
    "key": lambda n: {n: "a"},
    "looked up": lambda n: ({3: "a", 4.0: "b"}.get(n), n in {4: 0}),
    "counted": lambda n: dict(collections.Counter([n, 3, n])),
    "enumeration": lambda n: (Kind(n).name, n == Kind.FOUR),
    "json": lambda n: json.dumps({"n": [n]}),
    "packed": lambda n: struct.pack("d", n),
    "mean": lambda n: (statistics.mean([n, 2]), statistics.median([n, 1, 4])),
    "fraction": lambda n: str(fractions.Fraction(n) / 3),
    "decimal": lambda n: str(decimal.Decimal(n) / 4),
    "copied": lambda n: (copy.deepcopy([n]), pickle.loads(pickle.dumps(n))),
    "islice": lambda n: list(itertools.islice("abcdefgh", n)),
    "array": lambda n: (np.array([n, 1]).tolist(), str(np.array([n]).dtype), np.float64(n) * n),
    "arange": lambda n: np.arange(n).tolist(),
    "sine": lambda n: float(np.sin(n)),
    "operators": lambda n: (operator.add(n, 1), functools.reduce(operator.mul, [n, 2])),
    "tensor": lambda n: (
        torch.tensor([n, 1]).dtype,
        torch.arange(n).tolist(),
        str(torch.Size([4])),
    ),
}


def from_attribute(value, function):
    holder = types.SimpleNamespace()

    def called(x):
        return x * 2, function(holder.number)

    def call(compiled, size):
        holder.number = value(size)
        return compiled(torch.ones(2))

    return called, call


def from_argument(value, function):
    def called(x, number):
        return x * 2, function(number)

    return called, lambda compiled, size: compiled(torch.ones(2), value(size))


def from_size(value, function):
    def called(x):
        return x * 2, function(value(x.shape[0]))

    return called, lambda compiled, size: compiled(torch.ones(size))


SOURCES = {
    "size": (from_size, lambda size: size),
    "part of a size": (from_size, lambda size: size * 2 - 3),
    "half a size": (from_size, lambda size: size / 2),
    "argument": (from_argument, int),
    "float argument": (from_argument, float),
    "attribute": (from_attribute, int),
    "float attribute": (from_attribute, lambda size: size - 4.5),
}
FAST = ("size", "half a size", "float argument")


def said(call, compiled, size):
    try:
        return repr(call(compiled, size)[1])
    except (
        ArithmeticError,
        LookupError,
        TypeError,
        ValueError,
        AttributeError,
        RuntimeError,
    ) as error:
        return type(error)


def assert_like_eager(source, name):
    make, value = SOURCES[source]
    function, call = make(value, FUNCTIONS[name])
    compiled = funcaot.compile(function, backend="eager")
    sizes = (3, 4, 5, 6)
    assert [said(call, compiled, n) for n in sizes] == [said(call, function, n) for n in sizes]


@pytest.mark.filterwarnings("ignore::funcaot.errors.CaptureWarning")
@pytest.mark.filterwarnings("ignore::funcaot.errors.RecompileWarning")
@pytest.mark.parametrize("name", FUNCTIONS)
@pytest.mark.parametrize("source", FAST)
def test_sizes(source, name):
    assert_like_eager(source, name)


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore::funcaot.errors.CaptureWarning")
@pytest.mark.filterwarnings("ignore::funcaot.errors.RecompileWarning")
@pytest.mark.parametrize("source", [s for s in SOURCES if s not in FAST])
def test_others(source):
    for name in FUNCTIONS:
        assert_like_eager(source, name)


@pytest.mark.filterwarnings("ignore::funcaot.errors.RecompileWarning")
def test_a_power_beyond_the_integers_of_a_machine():
    compiled = funcaot.compile(lambda x: (x * 2, 2 ** x.shape[0]), backend="eager")
    assert [compiled(torch.ones(n))[1] for n in (3, 4, 70, 90)] == [2**n for n in (3, 4, 70, 90)]
