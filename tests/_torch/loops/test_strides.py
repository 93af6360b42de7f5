"""Strides that are read off an index are those that Inductor finds by simplifying it."""

import random

import pytest
import sympy
from torch._inductor.codegen import cpp
from torch._inductor.sizevars import stride_at_vec_range
from torch.utils._sympy.functions import FloorDiv, ModularIndexing

from funcaot._torch.inductor.loops import strides

X, Y, Z = (sympy.Symbol(name, integer=True, nonnegative=True) for name in ("x0", "x1", "x2"))
SIZE = sympy.Symbol("ks0", integer=True, positive=True)


@pytest.fixture(autouse=True)
def read_off():
    with strides.mended():
        yield


def index_drawn(draw):
    """A sum of what indices consist of: multiples, quotients and remainders of loops' variables."""
    terms = []
    for _ in range(draw.randint(1, 4)):
        variable = draw.choice([X, Y, Z])
        inside = draw.choice([variable, variable + 8 * Y, variable - draw.choice([3, 16])])
        number = draw.choice([1, 3, 8, 16, SIZE, 4 * SIZE, SIZE + 1, SIZE**2])
        term = draw.choice(
            [
                variable,
                variable * Y,
                FloorDiv(inside, draw.choice([2, 16])),
                ModularIndexing(inside, draw.choice([1, 16]), draw.choice([5, 32])),
            ]
        )
        terms.append(number * draw.choice([variable, variable, term]))
    return sympy.Add(*terms, draw.choice([0, 5, SIZE]))


@pytest.mark.parametrize("seed", range(40))
def test_as_inductor_finds_them(seed):
    draw = random.Random(seed)
    for _ in range(5):
        index = index_drawn(draw)
        for variable in (X, Y):
            for length in (None, 16):
                found = cpp.stride_at_vec_range(index, variable, length)
                expected = stride_at_vec_range(index, variable, length)
                assert found == expected or sympy.expand(found - expected) == 0, index


@pytest.mark.parametrize(
    ("index", "expected"),
    [
        (X, 1),
        (4 * X + 7 * Y, 4),
        (SIZE * X + 2 * X, SIZE + 2),
        (7 * Y + 3, 0),
        (sympy.Integer(5), 0),
        (X * (SIZE + 1) - X * SIZE, 1),
    ],
)
def test_plain_ones(index, expected, monkeypatch):
    """They are found without simplifying anything."""
    monkeypatch.setattr(sympy, "simplify", None)
    found = cpp.stride_at_vec_range(index, X, 16)
    assert found == expected
    assert isinstance(found, sympy.Expr)


def test_a_condition_is_an_index_too():
    """Inductor asks for the stride of what it computes from indices."""
    assert cpp.stride_at_vec_range(SIZE >= 1024, X, 16) == 0
