"""Every Function of the database under single transforms and a share of the compositions."""

import pytest

from funcaot.testing.database import FUNCTIONS
from funcaot.testing.generator import fast_cases, numerical_cases
from funcaot.testing.parametrize import parameters


@pytest.mark.parametrize("case", parameters(fast_cases(FUNCTIONS)))
def test_transform(case):
    case.run()


@pytest.mark.parametrize("case", parameters(numerical_cases(FUNCTIONS)))
def test_derivative_by_finite_differences(case):
    case.run()
