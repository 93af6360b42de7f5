"""Forward mode where transposing a backward twice isn't possible."""

import pytest
import torch

import funcaot
from funcaot.errors import RuleError, UnsupportedError


def along(function, x):
    return torch.func.jvp(function, (x,), (x.cos(),))


@pytest.mark.parametrize(
    "function",
    [
        lambda x: torch.linalg.matrix_exp(x).sin(),
        lambda x: torch.nn.functional.hardsigmoid(x) * x,
        lambda x: torch.logcumsumexp(x, 0) * x,
        lambda x: torch.xlogy(x * x, x * x + 1),
    ],
)
def test_ops(function):
    x = torch.linspace(-1, 1, 9, dtype=torch.float64).reshape(3, 3)
    compiled = funcaot.compile(function, backend="eager")
    torch.testing.assert_close(along(compiled, x), along(function, x))


def test_grad_of_the_pushforward():
    def function(x):
        return torch.linalg.matrix_exp(x)

    def pushed(function):
        return lambda x: along(function, x)[1].sin().sum()

    x = torch.linspace(-1, 1, 4, dtype=torch.float64).reshape(2, 2)
    compiled = funcaot.compile(function, backend="eager")
    expected = torch.func.grad(pushed(function))(x)
    torch.testing.assert_close(torch.func.grad(pushed(compiled))(x), expected)


class Clipped(torch.autograd.Function):
    generate_vmap_rule = True

    @staticmethod
    def forward(x):
        return x.clone()

    @staticmethod
    def setup_context(ctx, inputs, output):
        pass

    @staticmethod
    def backward(ctx, gradient):
        return gradient.clamp(-1, 1)


def test_a_backward_that_is_not_linear_is_refused():
    class Rule(funcaot.Function):
        forward = Clipped.forward
        setup_context = Clipped.setup_context
        backward = Clipped.backward
        generate_jvp_rule = True

    compiled = funcaot.compile(lambda x: Rule.apply(x * 2), backend="eager")
    with pytest.raises((RuleError, UnsupportedError)):
        along(compiled, torch.ones(3))
