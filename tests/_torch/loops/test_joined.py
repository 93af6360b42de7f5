"""Dimensions of an index are joined where Inductor finds them by matching, and as it joins them."""

import random

import pytest
import sympy
from torch._inductor import sizevars
from torch.utils._sympy.functions import FloorDiv, ModularIndexing

from funcaot._torch.inductor.loops import joined

X, Y = (sympy.Symbol(name, integer=True, nonnegative=True) for name in ("x0", "x1"))
SIZE = sympy.Symbol("ks0", integer=True, positive=True)
usual = sizevars._join_dimensions_cached.__wrapped__
usual_simplify = sizevars.SizeVarAllocator._simplify_with_ranges


@pytest.fixture(autouse=True)
def by_looking():
    with joined.mended():
        yield


def index_drawn(draw):
    """A sum in which remainders and quotients of the same loops occur, often of one dimension."""
    terms = []
    for _ in range(draw.randint(1, 3)):
        base = draw.choice([X, Y, X + 8 * Y, 4 * X, 8 * X + 3, X + 5, FloorDiv(X, 6), SIZE * X + Y])
        divisor, modulus, further = (draw.choice([1, 2, 3, 4, 8]) for _ in range(3))
        scale = draw.choice([1, 1, 2, 5, -1, SIZE])
        terms.append(scale * ModularIndexing(base, divisor, modulus))
        step = scale * draw.choice([modulus, modulus, modulus, 3])
        behind = divisor * draw.choice([modulus, modulus, modulus, 2])
        terms.append(
            step
            * draw.choice(
                [
                    ModularIndexing(base, behind, further),
                    FloorDiv(base, behind),
                    base,
                    ModularIndexing(base, behind, further) * Y,
                ]
            )
        )
    return sympy.Add(*terms, draw.choice([0, 5, 7 * Y, SIZE]))


@pytest.mark.parametrize("seed", range(12))
def test_as_inductor_joins_them(seed):
    draw = random.Random(seed)
    for _ in range(25):
        index = index_drawn(draw)
        if isinstance(index, sympy.Add):
            assert sizevars.join_dimensions(index) == _expected(index), index


def _expected(index):
    """By matching, again for what comes out."""
    ours, sizevars._join_dimensions_cached = sizevars._join_dimensions_cached, usual
    try:
        return sizevars.join_dimensions(index)
    finally:
        sizevars._join_dimensions_cached = ours


@pytest.mark.parametrize(
    ("index", "expected"),
    [
        (ModularIndexing(X, 1, 32) + 32 * ModularIndexing(X, 32, 4), ModularIndexing(X, 1, 128)),
        (ModularIndexing(X, 1, 32) + 32 * FloorDiv(X, 32) + Y, X + Y),
        (ModularIndexing(X, 1, 32) + 31 * FloorDiv(X, 32), None),
        (ModularIndexing(X, 1, 32) + 32 * FloorDiv(Y, 32), None),
        (5 * ModularIndexing(X + Y, 4, 8) + 40 * FloorDiv(X + Y, 32), 5 * FloorDiv(X + Y, 4)),
    ],
)
def test_nothing_is_matched(index, expected, monkeypatch):
    monkeypatch.setattr(sympy.Basic, "match", None)
    assert sizevars.join_dimensions(index) == (index if expected is None else expected)


def test_what_it_cannot_read_is_matched():
    """A quotient times a size isn't a number times a quotient."""
    index = SIZE * ModularIndexing(X, 1, 4) + 4 * SIZE * FloorDiv(X, 4)
    assert sizevars.join_dimensions(index) == SIZE * X


class Ranges:
    """An allocator for graphs with these replacements of symbols."""

    def __init__(self, replacements):
        self.made = sizevars.SizeVarAllocator()
        self.made.replacements.update(replacements)

    def simplified(self, index):
        return self.made._simplify_with_ranges(index, {X: sympy.Integer(16), Y: sympy.Integer(3)})


@pytest.mark.parametrize(
    "index",
    [
        X * (Y + 3) + 2,
        FloorDiv(X, 4) + Y,
        ModularIndexing(X, 1, 32) + Y,
        SIZE * X + SIZE * FloorDiv(X, 16),
        SIZE + Y,
    ],
)
def test_indices_come_out_as_from_inductor(index):
    for replacements in ({}, {SIZE: FloorDiv(4 * X + Y, 4)}):
        found = Ranges(replacements).simplified(index)
        assert found == _usual_simplified(Ranges(replacements), index)


def _usual_simplified(ranges, index):
    return usual_simplify(ranges.made, index, {X: sympy.Integer(16), Y: sympy.Integer(3)})


def test_no_relations_are_written_for_plain_indices(monkeypatch):
    monkeypatch.setattr(sympy.Symbol, "__lt__", None)
    assert Ranges({}).simplified(X * (Y + 3)) == X * Y + 3 * X
