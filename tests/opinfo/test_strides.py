"""What symbolic ops say of sizes, strides, dtypes and sharing is what eager's results have."""

import pytest

from funcaot.testing.torch_operators.torch_opinfo import full_name
from tests.hostile import COMPILER
from tests.opinfo.layouts import LAYOUTS
from tests.opinfo.programs import calls_of, differences, operator_differences
from tests.opinfo.strides import apart, disagreements, elementwise_disagreements

pytestmark = pytest.mark.filterwarnings("ignore")  # Many operators warn.

PARTS = 16
# Their backwards and the statistics that they return lie in other orders than the symbolic ones.
FAST = {
    "_native_batch_norm_legit",
    "nn.functional.glu",
    "nn.functional.hardtanh",
    "nn.functional.max_unpool2d",
    "nn.functional.pad.replicate",
    "log_softmax",
    "ldexp",
}


def operators():
    # Not when tests are collected: it takes seconds, and changes settings of the process.
    from funcaot._torch.tensors.testing import operators

    return operators()


def together(layout):
    """A program of all operators of ``FAST``."""
    chosen = [operator for operator in operators() if full_name(operator) in FAST]
    calls = [call for operator in chosen for call in calls_of(operator, layout)]
    assert len(calls) > 2
    return calls


def lines(found):
    return "\n".join(" ".join(one) for one in found)


def test_operators():
    layouts = ("channels_last", "turned", "expanded")
    chosen = [operator for operator in operators() if full_name(operator) in FAST]
    found = [one for operator in chosen for one in disagreements(operator, 1, layouts=layouts)]
    assert len(chosen) == len(FAST) and not found, lines(found)


@pytest.mark.slow
@pytest.mark.long
def test_elementwise_ops():
    """Not in the fast group: some of these ops crash the process where others ran before."""
    found, ops = elementwise_disagreements(100)
    assert not found, lines(found)
    assert ops > 200


@pytest.mark.slow
@pytest.mark.long
@pytest.mark.parametrize("part", range(PARTS))
def test_every_operator(part):
    found = []
    for operator in operators()[part::PARTS]:
        found += apart(lambda operator=operator: disagreements(operator, 4), [])
    assert not found, lines(found)


@pytest.mark.parametrize("layout", ["channels_last", "turned"])
def test_programs(layout):
    found = differences(together(layout), COMPILER)
    assert not found, "\n".join(found)


@pytest.mark.slow
@pytest.mark.long
@pytest.mark.parametrize("layout", ["channels_last", "turned", "expanded"])
def test_programs_on_inductor(layout):
    found = differences(together(layout), None)
    assert not found, "\n".join(found)


@pytest.mark.slow
@pytest.mark.long
@pytest.mark.parametrize("layout", list(LAYOUTS)[1:])
@pytest.mark.parametrize("part", range(PARTS))
def test_every_operator_as_a_program(part, layout):
    found = []
    for operator in operators()[part::PARTS]:
        run = lambda operator=operator: operator_differences(operator, layout, COMPILER)  # noqa: E731
        found += apart(run, []) if "nothing" in layout else run()
    assert not found, "\n".join(found)
