"""No reported silent error is one here; the page of the docs says so of each."""

from collections import Counter

import pytest
import torch

from tests.silent_errors.measure import load
from tests.silent_errors.page import PAGE, page
from tests.silent_errors.records import Case
from tests.silent_errors.runner import (
    COMPILERS,
    RAISES,
    REFUSES,
    RIGHT,
    WRONG,
    Verdict,
    judge,
    with_funcaot,
)
from tests.silent_errors.table import CASES

each_case = pytest.mark.parametrize("case", CASES, ids=[case.name for case in CASES])
no_warnings = pytest.mark.filterwarnings("ignore")


def is_right(case: Case, compiler) -> None:
    verdict = judge(case, compiler)
    allowed = (RIGHT,) if case.refuses is None else (RIGHT, REFUSES)
    if case.gap is not None:
        # When it is mended, the reason has to go.
        allowed = (WRONG, RAISES)
    assert verdict.status in allowed, verdict.detail


@no_warnings
@each_case
def test_funcaot_is_right(case):
    is_right(case, with_funcaot("eager"))


@no_warnings
@pytest.mark.slow
@pytest.mark.long
@each_case
def test_funcaot_is_right_with_inductor(case):
    is_right(case, with_funcaot("inductor"))


@no_warnings
@each_case
def test_eager_agrees_with_itself(case):
    """Two runs of a case are equal, so a difference is the compiler's."""
    if case.oracle is None:
        assert judge(case, COMPILERS["eager"]) == Verdict(RIGHT)


def test_names_are_unique():
    assert [name for name, n in Counter(case.name for case in CASES).items() if n > 1] == []


def test_enough_of_them_were_reported():
    assert sum(case.issue is not None for case in CASES) >= 60


def test_the_page_is_what_was_measured():
    assert PAGE.read_text() == page(load())


def test_what_was_measured_is_in_the_table():
    names = {case.name for case in CASES}
    for version, found in load().items():
        assert set(found) <= names, version
        assert all(set(verdicts) <= set(COMPILERS) for verdicts in found.values()), version


def test_the_page_lists_every_case():
    text = PAGE.read_text()
    assert [case.name for case in CASES if f"| {case.name} | {case.link} |" not in text] == []


def planted(build) -> Case:
    return Case("planted", "", None, "", build)


def deaf(function):
    """A compiler whose results are computed from a copy, without autograd."""
    return lambda x: function(x.detach().clone())


@pytest.mark.parametrize(
    ("function", "compiler", "status"),
    [
        pytest.param(lambda x: x * 2, deaf, WRONG, id="requires_grad"),
        pytest.param(lambda x: x.detach(), deaf, WRONG, id="aliasing"),
        pytest.param(lambda x: x, lambda f: lambda x: f(x).view(-1), WRONG, id="identity"),
        pytest.param(lambda x: x + 1, lambda f: lambda x: f(x) + 1, WRONG, id="values"),
        pytest.param(lambda x: x + 1, lambda f: lambda x: f(x).double(), WRONG, id="dtype"),
        pytest.param(lambda x: x[5], lambda f: lambda x: x, WRONG, id="missing error"),
        pytest.param(lambda x: x + 1, lambda f: lambda x: x[5], RAISES, id="an error"),
        pytest.param(lambda x: x[5], lambda f: f, RIGHT, id="the same error"),
    ],
)
def test_the_runner_sees(function, compiler, status):
    def build(compile):
        compiled = compile(function)

        def call(step):
            x = torch.arange(3.0).add(step).requires_grad_()
            return compiled(x), x

        return call

    assert judge(planted(build), compiler).status == status


def test_the_runner_sees_strides():
    def build(compile):
        compiled = compile(lambda x: x * 2)
        return lambda step: compiled(torch.ones(2, 3).t())

    assert judge(planted(build), lambda f: lambda x: f(x).contiguous()).status == WRONG
