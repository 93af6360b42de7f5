"""torch.compile with the lazy pipeline as its backend."""

import pytest
import torch
from torch.testing import assert_close

from funcaot.dynamo import dynamo_backend
from funcaot.errors import FuncaotError


def energy(x, weight):
    return (x @ weight).tanh().pow(2).sum()


@pytest.fixture(autouse=True)
def fresh_dynamo():
    torch.compiler.reset()
    yield
    torch.compiler.reset()


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_double_backward_through_torch_compile():
    compiled = torch.compile(energy, backend=dynamo_backend, options={"compiler": "eager"})
    x = torch.randn(3, 4, dtype=torch.float64, requires_grad=True)
    weight = torch.randn(4, 4, dtype=torch.float64, requires_grad=True)
    found = []
    for function in (energy, compiled):
        (force,) = torch.autograd.grad(function(x, weight), x, create_graph=True)
        found.append((force, *torch.autograd.grad(force.pow(2).sum(), (x, weight))))
    assert_close(found[1], found[0])


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_a_module_trains():
    module = torch.nn.Sequential(torch.nn.Linear(4, 8), torch.nn.ReLU(), torch.nn.Linear(8, 1))
    compiled = torch.compile(module, backend=dynamo_backend, options={"compiler": "eager"})
    x = torch.randn(5, 4)
    expected = torch.autograd.grad(module(x).sum(), list(module.parameters()))
    actual = torch.autograd.grad(compiled(x).sum(), list(module.parameters()))
    assert_close(actual, expected)


@pytest.mark.parametrize(
    "arguments", [{"mode": "max-autotune"}, {"options": {"colour": 1}}], ids=["mode", "options"]
)
def test_unknown_modes_and_options_are_refused(arguments):
    graph = torch.fx.symbolic_trace(torch.nn.Identity())
    with pytest.raises(FuncaotError, match="Instead: leave"):
        dynamo_backend(graph, [], **arguments)
