"""Every Function under every composition of two transforms and the chosen deeper ones."""

import pytest

from funcaot.testing.database import FUNCTIONS
from funcaot.testing.generator import all_cases, inductor_cases
from funcaot.testing.parametrize import parameters

pytestmark = pytest.mark.slow

# Every sixth case runs with the slow group, the others with the long one.
SHARE = 6


def pytest_generate_tests(metafunc):
    # Collecting twenty thousand tests takes seconds, which the fast group need not pay.
    chosen = metafunc.config.getoption("markexpr").replace("not slow", "")
    wanted = "slow" in chosen or chosen == "long"
    if metafunc.function is test_on_inductor:
        metafunc.parametrize("case", parameters(inductor_cases(FUNCTIONS) if wanted else ()))
    else:
        metafunc.parametrize("case", parameters(all_cases(FUNCTIONS) if wanted else (), is_long))


def is_long(position, _):
    return position % SHARE != 0


def test_transform(case):
    case.run()


def test_on_inductor(case):
    case.run()
