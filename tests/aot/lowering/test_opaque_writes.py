"""Functions on real values that hand ctx to a helper, or write to their input, in each backend."""

import pytest
import torch

import funcaot
from tests.hostile import COMPILER


def doubled(ctx, x):
    """It may mark something: that isn't seen in the code of forward."""
    ctx.factor = 2.0
    return torch.from_numpy(x.detach().numpy() * 2)


def doubled_in_place(ctx, x):
    ctx.mark_dirty(x)
    ctx.factor = 2.0
    x.detach().numpy()[...] *= 2
    return x


def scaled_in_place(ctx, x):
    ctx.mark_dirty(x)
    ctx.factor = 1.0 + x.detach().numpy().size / x.numel()
    return x.mul_(ctx.factor)


def branching(ctx, x):
    ctx.factor = 2.0
    return x * (2.0 if x.max().item() > -100 else 1.0)


def traced_in_place(ctx, x):
    ctx.mark_dirty(x)
    ctx.factor = 2.0
    return x.mul_(2)


HELPERS = [doubled, doubled_in_place, scaled_in_place, branching, traced_in_place]


def with_ctx(helper):
    class Doubling(torch.autograd.Function):
        @staticmethod
        def forward(ctx, x):
            return helper(ctx, x)

        @staticmethod
        def backward(ctx, gradient):
            return gradient * ctx.factor

    return lambda x: Doubling.apply(x.sin()) * 3


def result_and_gradient(function, x):
    result = function(x)
    return result.detach(), *torch.autograd.grad(result.sum(), x)


def check(helper, backend):
    function = with_ctx(helper)
    compiled = funcaot.compile(function, backend=backend)
    for count in (3, 3, 4, 5):
        x = torch.linspace(-1, 1, count, requires_grad=True)
        torch.testing.assert_close(
            result_and_gradient(compiled, x), result_and_gradient(function, x)
        )


@pytest.mark.parametrize("helper", HELPERS)
def test_helpers_of_forward(helper):
    check(helper, COMPILER)


@pytest.mark.slow
@pytest.mark.parametrize("helper", HELPERS)
def test_helpers_of_forward_on_inductor(helper):
    check(helper, "inductor")
