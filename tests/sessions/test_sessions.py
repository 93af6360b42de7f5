"""Drawn sessions of a user with a model: each action gives what it gives in eager.

A failure's message names the actions. ``shrunk`` in ``session.py`` leaves out those that don't
matter.
"""

import random
import warnings

import pytest

import funcaot
from funcaot.errors import CaptureWarning, RecompileWarning
from tests.hostile import COMPILER
from tests.sessions.session import differences, drawn, run

LENGTH = 12


def assert_like_eager(seed, backend, actions=None, folder=None):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", CaptureWarning)
        warnings.simplefilter("ignore", RecompileWarning)
        with funcaot.config.patch(fallback_random=True):  # Inductor draws as eager does.
            refusal = run(actions or drawn(seed, LENGTH), seed, backend, folder)
    funcaot.clear()
    assert refusal is None, refusal


def assert_saved_ones_like_eager(seed, backend, folder):
    """A second user has the programs of a first, does the same, and then it in another order."""
    actions = drawn(seed, LENGTH)
    for _ in range(2):
        assert_like_eager(seed, backend, actions, folder)
    random.Random(seed).shuffle(actions)
    assert_like_eager(seed, backend, actions, folder)


@pytest.mark.parametrize("seed", range(2))
def test_on_the_hostile_backend(seed):
    assert_like_eager(seed, COMPILER)


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(100, 101))
def test_on_inductor(seed):
    assert_like_eager(seed, "inductor")


@pytest.mark.slow
@pytest.mark.long
@pytest.mark.parametrize("seed", range(1000, 1100))
def test_many_on_the_hostile_backend(seed):
    assert_like_eager(seed, COMPILER)


@pytest.mark.slow
@pytest.mark.long
@pytest.mark.parametrize("seed", range(2000, 2020))
def test_many_on_inductor(seed):
    assert_like_eager(seed, "inductor")


@pytest.mark.parametrize("seed", [2])
def test_with_programs_of_another(seed, tmp_path):
    assert_saved_ones_like_eager(seed, "eager", tmp_path)


@pytest.mark.slow
@pytest.mark.long
@pytest.mark.parametrize("seed", range(3000, 3050))
def test_many_with_programs_of_another(seed, tmp_path):
    assert_saved_ones_like_eager(seed, "eager", tmp_path)


@pytest.mark.slow
@pytest.mark.long
@pytest.mark.parametrize("seed", range(4000, 4005))
def test_many_on_inductor_with_programs_of_another(seed, tmp_path):
    assert_saved_ones_like_eager(seed, "inductor", tmp_path)


def test_differences_are_seen():
    wanted = {"a": [1, 2.0], "b": None}
    assert not list(differences(wanted, {"a": [1, 2.0], "b": None}))
    assert list(differences(wanted, {"a": [1, 2.5], "b": None}))
    assert list(differences(wanted, {"a": [1, 2.0], "b": 0}))
    assert list(differences(ValueError("a"), 1))
