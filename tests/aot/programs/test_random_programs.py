"""Random programs of views and in-place ops: whatever can be seen is as in eager."""

import logging
from collections import Counter
from itertools import islice
from random import Random

import pytest

import funcaot
from funcaot import config
from funcaot.errors import UnsupportedError
from tests.aot.programs.batches import batches, writes_in_the_graph
from tests.aot.programs.differential import Stricter, Unseen, check
from tests.aot.programs.programs import generate
from tests.hostile import COMPILER

# Programs that fail eagerly are part of the game; torch logs each failure of a fake tensor.
logging.getLogger("torch._subclasses.fake_tensor").setLevel(logging.CRITICAL)


# Eager warns of these too.
pytestmark = [
    pytest.mark.filterwarnings("ignore:Tensor.mT is deprecated on 0-D"),
    pytest.mark.filterwarnings("ignore:Use of .* on expanded tensors is deprecated"),
]

WRITES = 4


def some_of(program, count, random):
    """Which of the tensors that a caller has after a call are written to."""
    everything = range(program.tensors)
    return sorted(random.sample(everything, min(count, len(everything))))


def run_programs(seeds, backend="eager", **kind):
    assert config.get().check_aliases
    outcomes = Counter()
    for seed in seeds:
        random = Random(seed)
        program = generate(random, **kind)
        compiled = funcaot.compile(program, backend=backend)
        grad_mode = random.random() < 0.8
        writes = None
        if "equal" in kind:
            writes = some_of(program, WRITES, random)
        try:
            check(program, program.inputs, grad_mode=grad_mode, compiled=compiled, writes=writes)
            outcomes["right"] += 1
        except UnsupportedError as error:
            outcomes["unsupported" if error.remedy else "without a remedy"] += 1
        except Stricter:
            outcomes["stricter"] += 1
        except Unseen:
            outcomes["unseen"] += 1
        except AssertionError as error:
            raise AssertionError(f"seed {seed}: {program}\n{error}") from error
    assert not outcomes["without a remedy"]
    assert outcomes["unseen"] <= 1 + len(seeds) // 100
    return outcomes


def test_some_programs():
    outcomes = run_programs(range(60))
    assert outcomes["right"] > 50


def test_some_programs_with_rarer_ops():
    outcomes = run_programs(range(40), wide=True)
    assert outcomes["right"] > 30


def test_some_programs_of_equal_results():
    outcomes = run_programs(range(20), equal=True)
    assert outcomes["right"] > 15


def test_some_programs_on_the_hostile_backend():
    outcomes = run_programs(range(100, 130), COMPILER, equal=True)
    assert outcomes["right"] > 25


@pytest.mark.slow
@pytest.mark.long
@pytest.mark.parametrize("block", range(10))
def test_many_programs(block):
    outcomes = run_programs(range(150 * block, 150 * (block + 1)), COMPILER)
    assert outcomes["unsupported"] < 15


@pytest.mark.slow
@pytest.mark.long
@pytest.mark.parametrize("block", range(8))
def test_many_programs_with_rarer_ops(block):
    outcomes = run_programs(range(150 * block, 150 * (block + 1)), COMPILER, wide=True)
    assert outcomes["unsupported"] < 30


@pytest.mark.slow
@pytest.mark.long
@pytest.mark.parametrize("block", range(16))
def test_many_programs_of_equal_results(block):
    wide = {"wide": True} if block % 4 == 3 else {}
    outcomes = run_programs(range(130 * block, 130 * (block + 1)), COMPILER, equal=True, **wide)
    assert outcomes["unsupported"] < 20


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["disjoint", "data_only"])
def test_programs_of_one_kind(kind):
    options = {"disjoint": {"overlap": False}, "data_only": {"metadata": False}}[kind]
    outcomes = run_programs(range(10_000, 10_150), COMPILER, **options)
    assert outcomes["unsupported"] < 8


def run_on_inductor(programs, size, *, grad_mode):
    outcomes = Counter()
    for number, batch in enumerate(batches(programs, size, grad_mode=grad_mode)):
        writes = some_of(batch, 2 * WRITES, Random(number))
        compiled = funcaot.compile(batch, backend="inductor")
        try:
            check(batch, batch.inputs, grad_mode=grad_mode, compiled=compiled, writes=writes)
            outcomes["right"] += len(batch.programs)
        except (Stricter, Unseen, UnsupportedError) as error:
            outcomes[type(error).__name__] += len(batch.programs)
        except AssertionError as error:
            raise AssertionError(f"batch {number}: {batch}\n{error}") from error
    return outcomes


KINDS = {
    "narrow": {},
    "wide": {"wide": True},
    "equal": {"equal": True},
    "equal and wide": {"equal": True, "wide": True},
}
BLOCKS = ["narrow"] * 2 + ["wide"] + ["equal"] * 3 + ["equal and wide"]


@pytest.mark.slow
@pytest.mark.long
@pytest.mark.parametrize("block", range(len(BLOCKS)))
def test_programs_on_inductor(block):
    seeds = range(5000 + 60 * block, 5000 + 60 * (block + 1))
    programs = [generate(Random(seed), **KINDS[BLOCKS[block]]) for seed in seeds]
    outcomes = run_on_inductor(programs, 12, grad_mode=True)
    assert outcomes["right"] >= 24


@pytest.mark.slow
@pytest.mark.long
@pytest.mark.parametrize("block", range(3))
def test_programs_that_write_inside_the_graph_on_inductor(block):
    def draw():
        random = Random(block)
        while True:
            program = generate(random, equal=True, metadata=False, overlap=False, grads=("plain",))
            if writes_in_the_graph(program):
                yield program

    outcomes = run_on_inductor(islice(draw(), 60), 12, grad_mode=True)
    assert outcomes["right"] >= 48
