"""The tests can fail: every planted mistake is found, by the row that is meant to find it."""

import pytest

from funcaot.errors import FuncaotError
from funcaot.testing import check
from tests.testing.planted_bugs import PLANTED, Correct
from tests.testing.planted_values import (
    HIDDEN,
    ConjugatesToo,
    Doubles,
    FirstOfATie,
    HalfOfATie,
    LargestOfEach,
    SecondOrderWrong,
    SignAtZero,
    doubled,
)

SHORT = ["call", "grad", "vmap", "vmap_last", "jvp", "autograd_of_autograd"]
ALL = {**PLANTED, **HIDDEN, SecondOrderWrong: {"second order"}}


@pytest.mark.parametrize("function", ALL, ids=lambda function: function.__name__)
def test_planted_bug_is_found(function):
    # A row beside the expected ones, so that a transform alone brings no others.
    rows = sorted({"inputs unchanged", *ALL[function]})
    # A mistake that only the compiled callable shows needs the column.
    backend = "eager" if function.__name__ == "WrongWhenCompiled" else None
    result = check(function, transforms=rows, backend=backend)
    guilty = {row.name for row in result.rows if row.status != "passes"}
    assert guilty & ALL[function], str(result)


@pytest.mark.parametrize("function", [Correct, ConjugatesToo])
def test_correct_function_passes(function):
    result = check(function, transforms=SHORT)
    assert result.ok, str(result)
    noted = {row.name for row in result.rows if row.status != "passes"}
    # Correct is written for real numbers and takes complex ones.
    assert noted == ({"complex inputs"} if function is Correct else set()), str(result)


RIGHT = [HalfOfATie, FirstOfATie, SignAtZero, LargestOfEach, doubled]


@pytest.mark.parametrize("function", RIGHT, ids=lambda function: function.__name__)
def test_right_rules_at_kinks_are_not_blamed(function):
    """Where a tie goes to either, next to a kink, and in place."""
    names = ["gradient", "jvp rule", "inputs unchanged", "accumulation"]
    result = check(function, transforms=names, backend=None)
    assert result.row("gradient").status == "passes", str(result)
    # A jvp that isn't there, or takes one of two tangents at a tie, is another matter.
    wrong = {row.name for row in result.rows if row.status in ("wrong", "error")}
    assert wrong <= ({"jvp rule"} if function in (HalfOfATie, FirstOfATie) else set()), str(result)


def test_in_place_functions_are_checked_on_copies():
    with pytest.raises(FuncaotError, match=r"lambda x: Doubles\.apply\(x\.clone\(\)\)"):
        check(Doubles)


def test_enough_bugs_are_planted():
    assert len(ALL) >= 50
