"""The rows of ``check`` in ``parametrize_transforms``."""

import warnings

import pytest
import torch

from funcaot.errors import PrecisionWarning
from funcaot.testing import Limitation, Mismatch, opinfo, parametrize_transforms
from tests.testing.planted_values import (
    HIDDEN,
    AllOfTheTies,
    ClipsLargeCotangents,
    ConjugatesToo,
    DropsSmallCotangents,
    FailsOnEmpty,
    ForgetsToSumBroadcast,
    NanAtZero,
    OffByMillionths,
    OverflowsFarOut,
    RoundsTinyNumbers,
    SecondOrderWrong,
    SevenAtZero,
    WrongBelowMinusTwo,
    WrongWhenCompiled,
)

SAMPLES = [torch.linspace(-4, 4, 5, dtype=torch.float64).requires_grad_()]


def cases_of(function, transforms=None, **known):
    mark = parametrize_transforms([opinfo(function, SAMPLES, **known)], transforms)
    return {parameter.values[0].name: parameter for parameter in mark.args[1]}


def test_a_wrong_second_order_is_a_failing_case_and_no_transform_sees_it():
    cases = cases_of(SecondOrderWrong)
    with pytest.raises(Mismatch, match="is 0, measured"):
        cases["second_order"].values[0].run()
    assert cases["second_order"].id == "SecondOrderWrong-second_order-float64-cpu"
    for name in ("gradient", "grad", "vmap", "autograd"):
        cases[name].values[0].run()


def test_a_wrong_branch_is_found_where_a_sample_reaches_it():
    with pytest.raises(Mismatch, match="where the argument is -4"):
        cases_of(WrongBelowMinusTwo, ["gradient"])["gradient"].values[0].run()


def test_a_small_error_warns():
    case = cases_of(OffByMillionths, ["gradient"])["gradient"].values[0]
    with pytest.warns(PrecisionWarning, match="measured"):
        case.run()


# Mistakes that only other samples show than those here, or the column for the compiled callable.
ELSEWHERE = (SevenAtZero, NanAtZero, AllOfTheTies, OverflowsFarOut, RoundsTinyNumbers)
ELSEWHERE += (ForgetsToSumBroadcast, WrongWhenCompiled, FailsOnEmpty)
# A backward that isn't linear limits what can be generated, which is no failure.
ELSEWHERE += (ClipsLargeCotangents, DropsSmallCotangents)


@pytest.mark.parametrize(
    "function", [each for each in HIDDEN if each not in ELSEWHERE], ids=lambda each: each.__name__
)
def test_planted_mistakes_are_failing_cases(function):
    """What ``check`` finds beyond values is found by the cases of pytest, too."""
    found = set()
    for name in {row.replace(" ", "_") for row in HIDDEN[function]}:
        (case,) = (parameter.values[0] for parameter in cases_of(function, [name]).values())
        with warnings.catch_warnings(record=True) as seen:
            warnings.simplefilter("always", PrecisionWarning)
            try:
                case.run()
            except (Mismatch, RuntimeError):
                found.add(name)
        found |= {name for each in seen if each.category is PrecisionWarning}
    assert found


def test_rows_are_chosen_by_name_and_all_pass_for_a_correct_function():
    cases = cases_of(ConjugatesToo, ["second_order", "accumulation", "rules_used", "grad"])
    assert set(cases) == {"second_order", "accumulation", "rules_used", "grad"}
    for parameter in cases.values():
        parameter.values[0].run()


def test_a_known_gap_of_a_row_is_an_expected_failure():
    gaps = (Limitation("second_order", "detached on purpose"),)
    (mark,) = cases_of(SecondOrderWrong, limitations=gaps)["second_order"].marks
    assert mark.kwargs == {"reason": "detached on purpose", "strict": True}


def test_a_function_that_is_not_the_derivative_has_no_gradient_row():
    assert "gradient" not in cases_of(ConjugatesToo, true_derivative=False)
    assert "gradient" in cases_of(ConjugatesToo, true_derivative=False, ref=torch.sin)
