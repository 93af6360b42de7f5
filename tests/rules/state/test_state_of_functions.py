"""State that Functions read and change, and that the function around them changes, is eager's."""

import itertools
import random

import pytest

import funcaot
from tests.rules.state.cases import BACKWARDS, BODIES, FORWARDS, REACHES, Case, difference

pytestmark = pytest.mark.filterwarnings("ignore::funcaot.errors.CaptureWarning")

FORWARD = [
    Case(forward, "hands_on", body, reach, split)
    for forward, body, reach, split in itertools.product(FORWARDS, BODIES, REACHES, (False, True))
]
BACKWARD = [
    Case("doubles", backward, body, reach, split)
    for backward, body, reach, split in itertools.product(BACKWARDS, BODIES, REACHES, (False, True))
]


def is_known(case):
    """Whether it's in the limits: a tensor in an object on ctx in whose place another one comes."""
    replaced = case.body in ("before_a_change", "after_others")
    return (case.backward, case.reach, case.split, replaced) == ("computes", "on_ctx", False, True)


ALL = [case for case in (*FORWARD, *BACKWARD) if not is_known(case)]
FAST = random.Random(0).sample(ALL, 40)


@pytest.mark.parametrize("case", FAST, ids=str)
def test_is_what_eager_has(case):
    assert difference(case, "eager") in (None, "refused")


@pytest.mark.parametrize("forward", ["reads", "counts", "counts_in_a_table"])
@pytest.mark.parametrize("body", ["after_a_change", "twice", "after_a_write"])
@pytest.mark.parametrize("reach", ["given", "global"])
def test_serves_what_forward_reads_after_a_change(forward, body, reach):
    assert difference(Case(forward, "hands_on", body, reach, split=True), "eager") is None


@pytest.mark.parametrize(("reach", "split"), [("given", False), ("given", True), ("on_ctx", True)])
def test_serves_what_backward_reads_of_an_object_on_ctx(reach, split):
    case = Case("doubles", "reads", "after_a_change", reach, split)
    assert difference(case, "eager") is None


@pytest.mark.parametrize("backward", ["counts", "stores", "counts_beside_a_global"])
@pytest.mark.parametrize("split", [False, True])
def test_serves_backwards_that_act_of_functions_called_as_eager_calls_them(backward, split):
    case = Case("reads_beside_a_global", backward, "after_a_change", "given", split)
    assert difference(case, "eager") is None


@pytest.mark.long
@pytest.mark.parametrize("part", range(0, len(ALL), 60))
def test_all(part):
    for case in ALL[part : part + 60]:
        assert difference(case, "eager") in (None, "refused"), case
        funcaot.clear()


@pytest.mark.slow
@pytest.mark.parametrize("case", random.Random(1).sample(ALL, 12), ids=str)
def test_on_inductor(case):
    assert difference(case, "inductor") in (None, "refused")
