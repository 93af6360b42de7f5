"""Random programs of views and in-place ops: whatever can be seen is as in eager."""

import logging
from collections import Counter
from random import Random

import pytest

from funcaot import config
from funcaot.errors import UnsupportedError
from tests.aot.differential import Stricter, Unseen, check
from tests.aot.programs import generate

# Programs that fail eagerly are part of the game; torch logs each failure of a fake tensor.
logging.getLogger("torch._subclasses.fake_tensor").setLevel(logging.CRITICAL)


# Eager warns of these too.
pytestmark = [
    pytest.mark.filterwarnings("ignore:Tensor.mT is deprecated on 0-D"),
    pytest.mark.filterwarnings("ignore:Use of .* on expanded tensors is deprecated"),
]


def run_programs(seeds, **kind):
    assert config.get().check_aliases
    outcomes = Counter()
    for seed in seeds:
        random = Random(seed)
        program = generate(random, **kind)
        try:
            check(program, program.inputs, grad_mode=random.random() < 0.8)
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
    assert outcomes["unseen"] <= len(seeds) // 100
    return outcomes


def test_some_programs():
    outcomes = run_programs(range(60))
    assert outcomes["right"] > 50


@pytest.mark.slow
@pytest.mark.parametrize("block", range(10))
def test_many_programs(block):
    outcomes = run_programs(range(300 * block, 300 * (block + 1)))
    assert outcomes["unsupported"] < 30


def test_some_programs_with_rarer_ops():
    outcomes = run_programs(range(40), wide=True)
    assert outcomes["right"] > 30


@pytest.mark.slow
@pytest.mark.parametrize("block", range(8))
def test_many_programs_with_rarer_ops(block):
    outcomes = run_programs(range(250 * block, 250 * (block + 1)), wide=True)
    assert outcomes["unsupported"] < 50


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["disjoint", "data_only"])
def test_programs_of_one_kind(kind):
    options = {"disjoint": {"overlap": False}, "data_only": {"metadata": False}}[kind]
    outcomes = run_programs(range(10_000, 10_300), **options)
    assert outcomes["unsupported"] < 15
