"""A user's Function inside a compiled function keeps its own rules."""

import pytest
import torch
from torch.func import grad, vmap
from torch.testing import assert_close

import funcaot


class Zeros(funcaot.Function):
    @staticmethod
    def forward(x):
        return x.sin()

    @staticmethod
    def setup_context(ctx, inputs, output):
        pass

    @staticmethod
    def backward(ctx, gradient):
        return torch.zeros_like(gradient)


class SevenTimes(funcaot.Function):
    generate_vmap_rule = True

    @staticmethod
    def forward(x):
        return x.cos()

    @staticmethod
    def setup_context(ctx, inputs, output):
        ctx.save_for_backward(inputs[0])

    @staticmethod
    def backward(ctx, gradient):
        (x,) = ctx.saved_tensors
        return gradient * 7 * x


class ThirdParty(torch.autograd.Function):
    """Doesn't know of funcaot; its rule is odd too."""

    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x)
        return x.exp()

    @staticmethod
    def backward(ctx, gradient):
        (x,) = ctx.saved_tensors
        return gradient * 13 * x


BACKENDS = pytest.mark.parametrize(
    "backend", ["eager", pytest.param("inductor", marks=pytest.mark.slow)]
)


@BACKENDS
@pytest.mark.parametrize("kind", [Zeros, SevenTimes, ThirdParty])
def test_an_odd_backward_is_respected(kind, backend):
    def f(x):
        return (kind.apply(x * 2) * 3).sum()

    x = torch.randn(4, requires_grad=True)
    (expected,) = torch.autograd.grad(f(x), x)
    (actual,) = torch.autograd.grad(funcaot.compile(f, backend=backend)(x), x)
    assert_close(actual, expected)


@BACKENDS
def test_an_odd_backward_is_respected_in_double_backward(backend):
    def f(x):
        return (SevenTimes.apply(x * 2) * 3).sum()

    def second(function, x):
        (first,) = torch.autograd.grad(function(x), x, create_graph=True)
        return torch.autograd.grad(first.pow(2).sum(), x)[0]

    x = torch.randn(4, dtype=torch.float64, requires_grad=True)
    assert_close(second(funcaot.compile(f, backend=backend), x), second(f, x))


def loss(x):
    return (SevenTimes.apply(x * 2) ** 2).sum()


@BACKENDS
def test_compile_of_grad(backend):
    x = torch.randn(4)
    assert_close(funcaot.compile(grad(loss), backend=backend)(x), grad(loss)(x))


@BACKENDS
def test_compile_of_vmap_of_grad(backend):
    x = torch.randn(5, 4)
    assert_close(funcaot.compile(vmap(grad(loss)), backend=backend)(x), vmap(grad(loss))(x))


@BACKENDS
def test_grad_of_compile_equals_compile_of_grad(backend):
    x = torch.randn(4)
    outside = grad(funcaot.compile(loss, backend=backend))(x)
    assert_close(outside, grad(loss)(x))


def test_the_forward_graph_keeps_the_function_as_one_node():
    compiled = funcaot.compile(lambda x: SevenTimes.apply(x * 2) + 1, backend="eager")
    compiled(torch.randn(3))
    graph = funcaot.report(compiled).entries[0].forward_graph
    functions = [getattr(node.target, "function", None) for node in graph.graph.nodes]
    assert functions.count(SevenTimes) == 1
