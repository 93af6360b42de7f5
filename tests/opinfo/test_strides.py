"""What symbolic ops say of sizes, strides, dtypes and sharing is what eager's results have."""

import pytest
import torch

import funcaot
from funcaot._torch.tracing.eager_rules import eager_strides
from funcaot.testing.torch_operators.torch_opinfo import full_name
from tests.hostile import COMPILER
from tests.opinfo.layouts import LAYOUTS
from tests.opinfo.programs import calls_of, differences, operator_differences
from tests.opinfo.strides import Comparing, apart, disagreements, elementwise_disagreements

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


CAST = {
    "mul": torch.mul,
    "add": torch.add,
    "div": torch.div,
    "pow": torch.pow,
    "lt": torch.lt,
    "atan2": torch.atan2,
    "where": lambda x, y: torch.where(y > 0, x, y),
    "lerp": lambda x, y: torch.lerp(x, y, 0.5) if x.dtype is y.dtype else x * y,
    "addcmul": lambda x, y: torch.addcmul(x, y, y),
}
HALF, BRAIN, FULL = torch.float16, torch.bfloat16, torch.float32


def cast_cases(name):
    """Expanded tensors beside transposed ones, which a kernel computes in another dtype."""
    for dtypes in ((HALF, HALF), (BRAIN, BRAIN), (torch.bool, FULL), (torch.int64, FULL)):
        for shape in ((3, 5, 4), (5, 4)):
            x = torch.ones((), dtype=dtypes[0]).expand(shape)
            y = torch.rand(*shape[:-2], shape[-1], shape[-2]).to(dtypes[1]).mT
            yield CAST[name], (x, y)
            yield CAST[name], (x[..., :1].contiguous().expand(shape), y)


@pytest.mark.parametrize("name", CAST)
def test_expanded_operands_that_are_cast(name):
    """Symbolic versions cast a copy first, which is contiguous."""
    comparing = Comparing()
    for function, args in cast_cases(name):
        with comparing:
            function(*args)
    assert comparing.calls
    assert not comparing.found, lines(comparing.found)


@pytest.mark.parametrize("name", CAST)
def test_expanded_operands_that_are_cast_by_layout_alone(name, monkeypatch):
    """As of large tensors, and of those on GPUs; half of the layouts were contiguous."""
    monkeypatch.setattr(eager_strides, "_LARGE", 0)
    test_expanded_operands_that_are_cast(name)


def test_an_expanded_operand_that_is_cast_in_a_program():
    for function, args in cast_cases("mul"):
        found = funcaot.compile(function, backend=COMPILER)(*args)
        assert found.stride() == function(*args).stride()


@pytest.mark.slow
def test_expanded_gradients_in_half_precision_on_inductor():
    """A sum hands back an expanded gradient, and autocast makes half precision usual."""

    def function(x):
        return (x.transpose(1, 2) * 1.3).sin().sum()

    compiled = funcaot.compile(function)
    for dtype in (HALF, BRAIN):
        for rows in (2, 3):
            x = torch.rand(rows, 5, 3, 8).to(dtype).requires_grad_()
            (expected,) = torch.autograd.grad(function(x), x)
            (found,) = torch.autograd.grad(compiled(x), x)
            assert found.stride() == expected.stride()


@pytest.mark.slow
@pytest.mark.long
def test_elementwise_ops():
    found, ops = elementwise_disagreements(24)
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
