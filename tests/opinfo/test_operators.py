"""All of torch's operator database through funcaot.compile, compared with eager."""

import pytest

from funcaot.testing.torch_operators.operator_gaps import GAPS, gap_for
from funcaot.testing.torch_operators.operators import INCONSISTENT, NOT_EAGER, WORKS, examine
from funcaot.testing.torch_operators.torch_opinfo import full_name

# torch says so once in a process, in whichever test comes first.
pytestmark = pytest.mark.filterwarnings("ignore:torch.qr is deprecated")

# Elementwise, reduction, view, matrix, normalisation, indexing, random, several outputs.
FAST = {
    "add",
    "softmax",
    "transpose",
    "matmul",
    "nn.functional.layer_norm",
    "nn.functional.conv2d",
    "index_select",
    "sort",
    "nn.functional.gelu",
    "linalg.solve",
    "var_mean",
    "where",
    "cumsum",
    "nn.functional.dropout",
    "fft.rfft",
}
# What Inductor compiles in a few seconds each.
ON_INDUCTOR = {"add", "softmax", "matmul", "var_mean", "nn.functional.gelu", "where", "cumsum"}


def pytest_generate_tests(metafunc):
    from funcaot._torch.tensors.testing import operators

    wanted = "slow" in metafunc.config.getoption("markexpr").replace("not slow", "")
    if "operator" in metafunc.fixturenames:
        chosen = [
            operator
            for operator in operators()
            if {
                "test_operator": full_name(operator) in FAST,
                "test_every_operator": wanted,
                "test_on_inductor": full_name(operator) in ON_INDUCTOR,
            }[metafunc.function.__name__]
        ]
        metafunc.parametrize("operator", chosen, ids=full_name)


def verify(outcomes):
    for outcome in outcomes:
        gap = gap_for(outcome.operator, outcome.step)
        if gap is None:
            assert outcome.status in (WORKS, NOT_EAGER, INCONSISTENT), outcome
        else:
            assert outcome.status != WORKS, f"{outcome}: works now, remove the gap: {gap}"


def test_operator(operator):
    verify(examine(operator))


# Two tensors of one operator are sparse, which torch warns about once in a process.
@pytest.mark.filterwarnings("ignore:Sparse CSR tensor support is in beta state")
@pytest.mark.slow
def test_every_operator(operator):
    verify(examine(operator))


@pytest.mark.slow
def test_on_inductor(operator):
    outcomes = examine(operator, backend="inductor", samples=1)
    assert {outcome.status for outcome in outcomes} <= {WORKS, NOT_EAGER}, outcomes


def test_every_gap_has_a_reason():
    assert all(gap.reason and gap.operators and gap.steps for gap in GAPS)
