"""What user code is given at the levels of functorch."""

import pytest
import torch

import funcaot


class NumpyTimes(funcaot.Function):
    @staticmethod
    def forward(x, y):
        return torch.from_numpy(x.numpy() * y.numpy())

    @staticmethod
    def setup_context(ctx, inputs, output):
        ctx.save_for_backward(*inputs)
        ctx.save_for_forward(*inputs)

    @staticmethod
    def backward(ctx, grad):
        x, y = ctx.saved_tensors
        return NumpyTimes.apply(grad, y), NumpyTimes.apply(grad, x)

    @staticmethod
    def jvp(ctx, tangent_x, tangent_y):
        x, y = ctx.saved_tensors
        return NumpyTimes.apply(tangent_x, y) + NumpyTimes.apply(x, tangent_y)


def test_rules_get_zeros_that_have_memory():
    x = torch.rand(3, dtype=torch.float64)
    y = torch.rand(3, dtype=torch.float64)
    _, tangent = torch.func.jvp(lambda x: NumpyTimes.apply(x, y), (x,), (torch.ones_like(x),))
    torch.testing.assert_close(tangent, y)

    def second(x):
        return torch.func.jvp(lambda x: NumpyTimes.apply(x, y), (x,), (torch.ones_like(x),))[1]

    torch.testing.assert_close(torch.func.grad(lambda x: second(x).sum())(x), torch.zeros_like(x))


def test_missing_backward_under_vmap_is_named():
    class OnlyForward(funcaot.Function):
        generate_vmap_rule = True

        @staticmethod
        def forward(x):
            return x.sin()

        @staticmethod
        def setup_context(ctx, inputs, output):
            pass

    x = torch.rand(2, 3, requires_grad=True)
    output = torch.func.vmap(OnlyForward.apply)(x)
    with pytest.raises(funcaot.errors.MissingRuleError, match="OnlyForward"):
        output.sum().backward()
