"""Drawn sessions of a user with a model: each action gives what it gives in eager.

A failure's message names the actions. ``shrunk`` in ``session.py`` leaves out those that don't
matter.
"""

import warnings

import pytest

import funcaot
from funcaot.errors import CaptureWarning, RecompileWarning
from tests.hostile import COMPILER
from tests.sessions.session import differences, drawn, run

LENGTH = 12


def assert_like_eager(seed, backend):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", CaptureWarning)
        warnings.simplefilter("ignore", RecompileWarning)
        with funcaot.config.patch(fallback_random=True):  # Inductor draws as eager does.
            refusal = run(drawn(seed, LENGTH), seed, backend)
    funcaot.clear()
    assert refusal is None, refusal


@pytest.mark.parametrize("seed", range(3))
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


def test_differences_are_seen():
    wanted = {"a": [1, 2.0], "b": None}
    assert not list(differences(wanted, {"a": [1, 2.0], "b": None}))
    assert list(differences(wanted, {"a": [1, 2.5], "b": None}))
    assert list(differences(wanted, {"a": [1, 2.0], "b": 0}))
    assert list(differences(ValueError("a"), 1))
