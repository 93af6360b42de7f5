"""The list of what differs is what is measured, and the page says it."""

import math

import pytest
import torch

from tests.special_values import compare
from tests.special_values.measure import measure
from tests.special_values.measured import (
    COMPILERS,
    DEFAULT,
    EXACT,
    load,
    load_one,
    measure_group,
    path_here,
)
from tests.special_values.page import PAGE, page
from tests.special_values.table import GROUPS

TITLES = [group.title for group in GROUPS]

no_warnings = pytest.mark.filterwarnings("ignore")


@no_warnings
@pytest.mark.slow
@pytest.mark.long
@pytest.mark.parametrize("title", TITLES)
def test_nothing_else_differs(title):
    """A new difference fails, and so does one that was mended and is still listed."""
    if not path_here().exists():
        pytest.skip(f"nothing was measured for {path_here().stem}")
    listed = load_one(path_here())
    found = measure_group(DEFAULT, title)
    assert found == listed[DEFAULT].get(title, {})
    assert measure_group(EXACT, title, found) == listed[EXACT].get(title, {})


@no_warnings
def test_eager_agrees_with_itself():
    for title in TITLES:
        assert measure(lambda function: function, title, lambda *_: True) == {}


def test_the_page_is_what_was_measured():
    assert PAGE.read_text() == page(load())


def test_what_was_measured_is_in_the_table():
    names = {group.title: {case.name for case in group.cases} for group in GROUPS}
    for found in load().values():
        assert set(found) <= set(COMPILERS)
        for groups in found.values():
            assert all(set(cases) <= names[title] for title, cases in groups.items())


def test_names_are_unique():
    for group in GROUPS:
        assert len({case.name for case in group.cases}) == len(group.cases)


NAN, INF = math.nan, math.inf


@pytest.mark.parametrize(
    ("found", "expected", "kinds"),
    [
        ([1.0, NAN, -0.0, INF], [1.0, NAN, -0.0, INF], []),
        ([NAN], [1.0], [compare.NAN]),
        ([1.0], [NAN], [compare.NAN]),
        ([0.0], [-0.0], [compare.ZERO]),
        ([INF], [-INF], [compare.INFINITY]),
        ([1e-40], [0.0], [compare.DENORMAL]),
        ([1.01], [1.0], [compare.VALUE]),
        ([1.0000001], [1.0], []),
    ],
)
def test_the_comparison_sees(found, expected, kinds):
    assert list(compare.differences(torch.tensor(found), torch.tensor(expected))) == kinds


def test_the_comparison_sees_indices_dtypes_and_missing_gradients():
    one = torch.tensor([1])
    assert compare.differences(one, one + 1) == {compare.INDEX: 1}
    assert compare.differences(one, one.int()) == {compare.METADATA: 1}
    assert compare.differences([one, None], [one, one]) == {compare.METADATA: 1}
