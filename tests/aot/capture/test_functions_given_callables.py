"""A Function that is given a callable, which closes over tensors of the program, and parameters."""

import pytest
import torch
from torch.autograd.function import once_differentiable
from torch.testing import assert_close

import funcaot
from funcaot.errors import UnsupportedError


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


@pytest.mark.parametrize("grad", [False, True])
def test_gradients_of_parameters(grad):
    model = Solver(closes_over_an_argument=False)
    compiled = funcaot.compile(model, backend="eager")
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


def test_a_callable_that_closes_over_both_is_refused():
    """The gradients of the parameters were None."""
    compiled = funcaot.compile(Solver(closes_over_an_argument=True), backend="eager")
    with pytest.raises(UnsupportedError, match="Step is given a function that closes over"):
        compiled(torch.ones(2, 3), torch.ones(3))


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
