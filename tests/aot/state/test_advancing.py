"""Random numbers that aren't torch's: a capture that ends with an error has drawn none of them."""

import random

import numpy
import pytest
import torch

import funcaot
from funcaot.errors import CaptureWarning, UnsupportedError

OWN = random.Random(3)
GENERATOR = numpy.random.default_rng(0)
OLD = numpy.random.RandomState(5)
MERSENNE = numpy.random.Generator(numpy.random.MT19937(2))
SYSTEM = random.SystemRandom()
NUMBERS = iter(range(100))

DRAWS = {
    "python": lambda: random.random(),
    "gauss": lambda: random.gauss(0, 1),
    "own": lambda: OWN.random(),
    "numpy": lambda: numpy.random.rand(),
    "normal": lambda: numpy.random.randn(),
    "generator": lambda: GENERATOR.random(),
    "old": lambda: OLD.rand(),
    "mersenne": lambda: MERSENNE.normal(),
}


def _story(function):
    """What calls raise and what comes next of each generator, from the same states on."""
    random.seed(0)
    numpy.random.seed(0)
    OWN.seed(3)
    OLD.seed(5)
    GENERATOR.bit_generator.state = numpy.random.default_rng(0).bit_generator.state
    MERSENNE.bit_generator.state = numpy.random.MT19937(2).state
    told = []
    for _ in range(3):
        try:
            function(torch.ones(2))
        except ValueError as error:
            told.append(str(error))
    return [*told, *(draw() for draw in DRAWS.values())]


@pytest.mark.parametrize("name", DRAWS)
def test_a_function_that_draws_and_raises(name):
    draw = DRAWS[name]

    def function(x):
        raise ValueError(str(draw()))

    assert _story(funcaot.compile(function, backend="eager")) == _story(function)


@pytest.mark.parametrize("name", DRAWS)
def test_a_refused_capture_has_drawn_nothing(name):
    draw = DRAWS[name]
    compiled = funcaot.compile(lambda x: x * draw(), backend="eager")

    def refused(x):
        with pytest.raises(UnsupportedError, match="draws random numbers from"):
            compiled(x)

    assert _story(refused) == _story(lambda x: None)


def test_numbers_of_the_system_are_refused():
    compiled = funcaot.compile(lambda x: x * SYSTEM.random(), backend="eager")
    with pytest.raises(UnsupportedError, match="random numbers of the system"):
        compiled(torch.ones(2))


@pytest.mark.parametrize("fullgraph", [True, False])
@pytest.mark.parametrize("raises", [True, False])
def test_what_an_iterator_gave_cant_be_put_back(raises, fullgraph):
    def function(x):
        number = next(NUMBERS)
        if raises:
            raise ValueError(number)
        return x * number

    compiled = funcaot.compile(function, backend="eager", fullgraph=fullgraph)
    for _ in range(2):
        with pytest.raises(UnsupportedError, match="reads NUMBERS, a range_iterator"):
            compiled(torch.ones(2))


def test_a_call_that_draws_runs_where_that_is_allowed():
    def function(x):
        return x * GENERATOR.random()

    compiled = funcaot.compile(function, backend="eager", fullgraph=False)
    with pytest.warns(CaptureWarning, match="Generator"):
        found = _story(compiled)
    assert found == _story(function)


class Feeding:
    """It keeps a generator that has begun, and a scale."""

    def __init__(self):
        self.rows = self._rows()
        self.first = next(self.rows)
        self.scale = 2.0

    def _rows(self):
        number = 0.0
        while True:
            yield number
            number += 1.0


def through_zip(feeding, x):
    pairs = list(zip(feeding.rows, [1], strict=False))
    return x * pairs[0][0]


READS = {
    "next": lambda feeding, x: x * next(feeding.rows),
    "loop": lambda feeding, x: x * next(iter(row for row in feeding.rows)),
    "zip": through_zip,
    "send": lambda feeding, x: x * feeding.rows.send(None),
}


@pytest.mark.parametrize("fullgraph", [True, False])
@pytest.mark.parametrize("name", READS)
def test_a_generator_that_goes_on_is_refused(name, fullgraph):
    feeding, read = Feeding(), READS[name]
    compiled = funcaot.compile(lambda x: read(feeding, x), backend="eager", fullgraph=fullgraph)
    with pytest.raises(UnsupportedError, match=r"an iterator|rows"):
        compiled(torch.ones(2))


@pytest.mark.parametrize("fullgraph", [True, False])
def test_a_generator_that_code_may_read_and_doesnt(fullgraph):
    feeding = Feeding()

    def function(x):
        if x.dim() > 3:
            x = x * next(feeding.rows)
        return x * feeding.scale

    compiled = funcaot.compile(function, backend="eager", fullgraph=fullgraph)
    for scale in (2.0, 3.0, 4.0):
        feeding.scale = scale
        assert compiled(torch.ones(2)).tolist() == [scale, scale]
    assert next(feeding.rows) == 1.0
    with pytest.raises(UnsupportedError):
        compiled(torch.ones(1, 1, 1, 1))


def test_a_call_that_raises_beside_such_a_generator():
    feeding = Feeding()

    def function(x):
        if x.dim() > 3:
            x = x * next(feeding.rows)
        raise ValueError("mine")

    compiled = funcaot.compile(function, backend="eager", fullgraph=False)
    with pytest.raises(ValueError, match="mine"):
        compiled(torch.ones(2))
