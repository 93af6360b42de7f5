"""What user code is given at the levels of functorch."""

import pytest
import torch
from torch.autograd import forward_ad

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


class PassesOn(funcaot.Function):
    generate_jvp_rule = True

    @staticmethod
    def forward(x, y):
        return x, x * y.sin(), y.cos()

    @staticmethod
    def setup_context(ctx, inputs, output):
        ctx.save_for_backward(inputs[0].view_as(inputs[0]), inputs[1])

    @staticmethod
    def backward(ctx, grad_x, grad_product, grad_cosine):
        x, y = ctx.saved_tensors
        return (
            grad_x + grad_product * y.sin(),
            grad_product * x * y.cos() - grad_cosine * y.sin(),
        )


def test_outputs_after_a_returned_input_keep_their_tangents():
    x, y, tangent = (torch.rand(3, dtype=torch.float64) for _ in range(3))
    with forward_ad.dual_level():
        outputs = PassesOn.apply(x, forward_ad.make_dual(y, tangent))
        tangents = [forward_ad.unpack_dual(output).tangent for output in outputs]
    expected = torch.func.jvp(lambda y: (x * y.sin(), y.cos()), (y,), (tangent,))[1]
    torch.testing.assert_close(tuple(tangents[1:]), expected)
    assert tangents[0] is None or not tangents[0].any()


def test_tangents_of_a_call_that_failed_are_forgotten():
    class Fails(PassesOn):
        generate_jvp_rule = False

        @staticmethod
        def jvp(ctx, *tangents):
            return tangents[1], tangents[1], tangents[1][:1]

    x, y = torch.rand(3), torch.rand(3)
    with forward_ad.dual_level():
        with pytest.raises(funcaot.errors.RuleError, match="wrong shape"):
            Fails.apply(x, forward_ad.make_dual(y, torch.ones(3)))
        outputs = PassesOn.apply(x, y)
        assert all(forward_ad.unpack_dual(output).tangent is None for output in outputs)
