"""The tests can fail: every planted mistake is found, by the row that is meant to find it."""

import pytest

from funcaot.testing import check
from tests.testing.planted_bugs import PLANTED, Correct

SHORT = ["call", "grad", "vmap", "vmap_last", "jvp", "autograd_of_autograd"]


@pytest.mark.parametrize("function", PLANTED, ids=lambda function: function.__name__)
def test_planted_bug_is_found(function):
    result = check(function, transforms=SHORT)
    guilty = {row.name for row in result.rows if row.status != "passes"}
    assert guilty & PLANTED[function], str(result)


def test_correct_function_passes():
    result = check(Correct, transforms=SHORT)
    assert result.ok, str(result)
    assert all(row.status == "passes" for row in result.rows), str(result)


def test_enough_bugs_are_planted():
    assert len(PLANTED) >= 20
