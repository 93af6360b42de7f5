"""What a function assigns where that already was is assigned in the calls in which it isn't."""

import pytest

from tests.aot.state.assigned.cases import CHANGES, cases

FAST = 36


def check(case):
    for changes in CHANGES:
        expected, _ = case.life(changes, compiled=False)
        seen, programs = case.life(changes, compiled=True)
        assert seen == expected
        assert programs <= 4


@pytest.mark.parametrize("case", cases()[:FAST], ids=str)
def test_target_holds_what_the_source_does(case):
    check(case)


@pytest.mark.long
@pytest.mark.parametrize("part", range(20))
def test_all_targets_and_sources(part):
    for case in cases()[FAST + part :: 20]:
        check(case)
