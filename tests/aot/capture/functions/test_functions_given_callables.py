"""A Function that is given a callable, which closes over tensors of the program, and parameters."""

import functools

import pytest
import torch
from torch.autograd.function import once_differentiable
from torch.testing import assert_close

import funcaot
from tests.hostile import COMPILER


class Step(torch.autograd.Function):
    """One step of a solver, whose backward runs the callable again (as adjoint methods do)."""

    @staticmethod
    def forward(ctx, settings, f, x, *phi):
        ctx.f, ctx.rate = f, settings[0]
        ctx.save_for_backward(x, *phi)
        return x + settings[0] * f(x)

    @staticmethod
    @once_differentiable
    def backward(ctx, gradient):
        x, *phi = ctx.saved_tensors
        with torch.enable_grad():
            x = x.detach().requires_grad_()
            y = x + ctx.rate * ctx.f(x)
        return None, None, *torch.autograd.grad(y, (x, *phi), gradient)


class Scaled(torch.autograd.Function):
    @staticmethod
    def forward(ctx, f, x, weight):
        ctx.save_for_backward(f(x))
        return f(x) * weight

    @staticmethod
    def backward(ctx, gradient):
        return None, None, gradient * ctx.saved_tensors[0]


class Solver(torch.nn.Module):
    def __init__(self, *, closes_over_an_argument):
        super().__init__()
        self.layer = torch.nn.Linear(3, 3)
        self.closes_over_an_argument = closes_over_an_argument

    def forward(self, x, context):
        def alone(x):
            return self.layer(x).tanh()

        def scaled(x):
            return self.layer(x).tanh() * context

        f = scaled if self.closes_over_an_argument else alone

        for _ in range(2):
            x = Step.apply((0.1, None), f, x, *self.layer.parameters())
        return x.square().sum()


@pytest.mark.parametrize(
    "backend", ["eager", COMPILER, "inductor"], ids=["eager", "hostile", "inductor"]
)
@pytest.mark.parametrize("closes", [False, True])
@pytest.mark.parametrize("grad", [False, True])
def test_gradients_of_parameters(grad, closes, backend):
    """With a callable that closes over both they were None, and then refused."""
    model = Solver(closes_over_an_argument=closes)
    compiled = funcaot.compile(model, backend=backend)
    for scale in (1.0, 2.0, 3.0):
        found = []
        for function in (model, compiled):
            x = torch.full((2, 3), scale, requires_grad=grad)
            model.zero_grad()
            loss = function(x, torch.full((3,), scale))
            loss.backward()
            gradients = [parameter.grad.clone() for parameter in model.parameters()]
            found.append((loss.detach(), gradients, x.grad))
        assert_close(*found)
        with torch.no_grad():
            for parameter in model.parameters():
                parameter.add_(0.1)
    assert funcaot.report(compiled).cache_misses == 1


class Context(torch.autograd.Function):
    """Keeps nothing but the callable, whose context its backward needs."""

    @staticmethod
    def forward(ctx, f, x):
        ctx.f = f
        return f(x).detach()

    @staticmethod
    def backward(ctx, gradient):
        return None, gradient * ctx.f(torch.ones_like(gradient))


@pytest.mark.parametrize("size", [3, 4])
def test_what_only_a_callable_keeps(size):
    """An argument that nothing else saved was missing in the backward."""

    def run(x, context):
        return Context.apply(functools.partial(lambda c, x: x * c.sin(), context * 2), x).sum()

    compiled = funcaot.compile(run, backend=COMPILER)
    for scale in (1.0, 3.0):
        found = []
        for function in (run, compiled):
            x = torch.full((size,), scale, requires_grad=True)
            function(x, torch.full((size,), scale)).backward()
            found.append(x.grad)
        assert_close(*found)


@functools.cache
def table(n):
    return torch.arange(n) + 1.0


class Weighted(torch.autograd.Function):
    @staticmethod
    def forward(ctx, f, x):
        ctx.f = f
        return (f(x) * table(3)).detach()

    @staticmethod
    def backward(ctx, gradient):
        return None, ctx.f(gradient) * table(3)


def test_a_table_that_the_backward_looks_up():
    def run(x, context):
        return Weighted.apply(lambda x: x * context, x).square().sum()

    compiled = funcaot.compile(run, backend=COMPILER)
    for scale in (1.0, 2.0, 3.0):
        found = []
        for function in (run, compiled):
            x = torch.full((3,), scale, requires_grad=True)
            function(x, torch.full((3,), 5.0)).backward()
            found.append(x.grad)
        assert_close(*found)


elsewhere: list[torch.Tensor] = []


class Remembering(torch.autograd.Function):
    @staticmethod
    def forward(ctx, f, x):
        return f(x)

    @staticmethod
    def backward(ctx, gradient):
        return None, gradient * elsewhere[0]


def test_a_tensor_that_only_the_backward_knows_is_read_in_each_call():
    """It was an assertion about fake tensors."""

    def run(x, context):
        return Remembering.apply(lambda x: x * context, x).sum()

    compiled = funcaot.compile(run, backend="eager")
    for value in (1.0, 2.0, 3.0):
        elsewhere[:] = [torch.full((3,), value)]
        x = torch.ones(3, requires_grad=True)
        compiled(x, torch.ones(3)).backward()
        assert_close(x.grad, torch.full((3,), value))
    elsewhere.clear()


def test_parameters_that_only_the_function_is_given():
    weight = torch.nn.Parameter(torch.full((3,), 2.0))

    def run(x, context):
        return Scaled.apply(lambda x: x * context, x, weight).sum()

    compiled = funcaot.compile(run, backend="eager")
    for scale in (1.0, 3.0):
        found = []
        for function in (run, compiled):
            weight.grad = None
            function(torch.full((3,), scale), torch.full((3,), 5.0)).backward()
            found.append(weight.grad.clone())
        assert_close(*found)
