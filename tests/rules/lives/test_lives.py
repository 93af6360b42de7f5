"""Random Functions with state compute and leave behind what eager does, or are refused."""

import pytest

import funcaot
from tests.rules.lives.functions import difference

pytestmark = pytest.mark.filterwarnings(
    "error::funcaot.errors.CaptureWarning", "ignore::UserWarning"
)
FAST = range(24)
# In docs/limits.md: a gradient requires grad under a transform inside; a second
# derivative asks a forward and its backward one after the other; a backward under a transform
# inside writes where eager raises.
KNOWN = {111, 155, 126, 197, 285}


@pytest.mark.parametrize("seed", FAST)
def test_is_what_eager_has(seed):
    assert difference(seed, "eager") is None


@pytest.mark.long
@pytest.mark.parametrize("part", range(100, 300, 20))
def test_many_lives(part):
    for seed in {*range(part, part + 20)} - KNOWN:
        assert difference(seed, "eager") is None, seed


@pytest.mark.long
@pytest.mark.parametrize("seed", range(5000, 5016))
def test_on_inductor(seed):
    with funcaot.config.patch(fallback_random=True):  # Inductor draws as eager does.
        assert difference(seed, "inductor") is None
