"""Every Function under every composition of two transforms and the chosen deeper ones."""

import pytest

from funcaot.testing.database import FUNCTIONS
from funcaot.testing.generator import all_cases, inductor_cases
from funcaot.testing.parametrize import parameters

pytestmark = pytest.mark.slow


def pytest_generate_tests(metafunc):
    # Collecting twenty thousand tests takes seconds, which the fast group need not pay.
    wanted = "slow" in metafunc.config.getoption("markexpr").replace("not slow", "")
    source = {"test_transform": all_cases, "test_on_inductor": inductor_cases}
    cases = source[metafunc.function.__name__](FUNCTIONS) if wanted else ()
    metafunc.parametrize("case", parameters(cases))


def test_transform(case):
    case.run()


def test_on_inductor(case):
    case.run()
