"""Where outputs come from: leaves that a function makes itself."""

import pytest
import torch

import funcaot
from funcaot.errors import UnsupportedError
from tests.aot.programs.differential import Inputs, check

OWN_LEAVES = {
    "a leaf": lambda x, y: torch.ones(3, dtype=x.dtype, requires_grad=True),
    "of a leaf": lambda x, y: torch.ones(3, dtype=x.dtype, requires_grad=True) * y,
    "a view of an input": lambda x, y: x.view(-1).requires_grad_(),
    "a view of an input, and others": lambda x, y: (x[0].requires_grad_(), y * 2, x),
    "a view of an intermediate": lambda x, y: (x * 2)[:1].requires_grad_(),
    "of a detached input": lambda x, y: x.detach().requires_grad_().sin(),
    "of a clone, and a view": lambda x, y: (lambda z: (z[0], z))(x.clone().requires_grad_() * 2),
    "a parameter": lambda x, y: torch.nn.Parameter(torch.ones(3, dtype=x.dtype) * 2),
    "a parameter of an input": lambda x, y: (torch.nn.Parameter(x.detach()), y * 2),
    "a parameter of an input's view": lambda x, y: torch.nn.Parameter(x.detach()[1:]),
    "a frozen parameter": lambda x, y: torch.nn.Parameter(y.detach() * 2, requires_grad=False),
    "a buffer": lambda x, y: torch.nn.Buffer(x * 2),
    "and its gradient": lambda x, y: _with_gradient(x.detach().requires_grad_()),
}


def _with_gradient(x):
    with torch.enable_grad():
        energy = (x**3).sum()
        return energy, torch.autograd.grad(energy, x)[0]


@pytest.mark.parametrize("grad_mode", [True, False])
@pytest.mark.parametrize("grad", [True, False])
@pytest.mark.parametrize("kind", OWN_LEAVES)
def test_leaves_that_the_function_makes(kind, grad, grad_mode):
    def make():
        x = torch.arange(3.0, dtype=torch.float64)
        y = torch.arange(3.0, dtype=torch.float64).requires_grad_(grad)
        return Inputs([x, y], [], [y])

    check(OWN_LEAVES[kind], make, grad_mode=grad_mode)


def test_backward_through_a_leaf_that_nobody_has():
    compiled = funcaot.compile(OWN_LEAVES["of a detached input"], backend="eager")
    result = compiled(torch.ones(3), torch.ones(3))
    result.sum().backward()
    result = compiled(torch.ones(3), torch.ones(3))
    assert result.requires_grad
    assert not result.is_leaf


@pytest.mark.parametrize(
    "function",
    [
        lambda x: (lambda y: (y, y * 2))(x[0].requires_grad_()),
        lambda x: x[0].requires_grad_().view(-1),
    ],
)
def test_what_depends_on_such_a_leaf(function):
    with pytest.raises(UnsupportedError, match="a leaf that requires grad and that it made"):
        funcaot.compile(function, backend="eager")(torch.ones(2, 2))


@pytest.mark.parametrize("dynamic", [None, False, True])
def test_a_size_stays_a_size(dynamic):
    compiled = funcaot.compile(lambda x: (x.shape, x * 2), backend="eager", dynamic=dynamic)
    for count in (3, 4, 5):
        assert tuple(compiled(torch.ones(count, 2))[0]) == (count, 2)
    if dynamic is False:
        assert isinstance(compiled(torch.ones(3, 2))[0], torch.Size)


def test_pieces_of_one_op_are_results_of_one_node():
    def function(x):
        y = x * 2
        return (*x.split(2), *y.unbind(1), x.split(2)[0])

    def seen(f):
        pieces = f(torch.ones(4, 3, requires_grad=True))
        nodes = [piece.grad_fn for piece in pieces]
        return [nodes.index(node) for node in nodes[:-1]], len({id(p) for p in pieces})

    compiled = funcaot.compile(function, backend="eager")
    assert seen(compiled) == seen(function) == ([0, 0, 2, 2, 2], 6)
