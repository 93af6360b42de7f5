"""Random functions with state leave behind what eager leaves, in every call."""

import pytest

import funcaot
from tests.aot.state.lives.lives import difference

FAST = range(24)


@pytest.mark.parametrize("seed", FAST)
def test_is_what_eager_has(seed):
    assert difference(seed, "eager") is None


@pytest.mark.long
@pytest.mark.parametrize("part", range(24, 1224, 40))
def test_many_lives(part):
    for seed in range(part, part + 40):
        assert difference(seed, "eager") is None, seed


@pytest.mark.long
@pytest.mark.parametrize("seed", range(5000, 5020))
def test_on_inductor(seed):
    with funcaot.config.patch(fallback_random=True):  # Inductor draws as eager does.
        assert difference(seed, "inductor") is None
