"""Forward mode: tangents lie in memory of their own where outputs do, as eager's."""

import pytest
import torch
from torch.autograd import forward_ad

import funcaot

FUNCTIONS = {
    "a copy": lambda x: (x.clone(),),
    "a sum with a number": lambda x: (x + 1,),
    "a transposed copy": lambda x: (x.t().contiguous(),),
    "two sums": lambda x: (x + 1, x + 2),
    "a view and a copy": lambda x: (x.view(-1), x.clone()),
}


def after_a_write(function):
    """Values and tangents of the argument and of each output, once the last one was written to."""
    with forward_ad.dual_level():
        x = forward_ad.make_dual(torch.arange(6.0).reshape(2, 3), torch.ones(2, 3))
        outputs = function(x)
        outputs[-1].mul_(3)
        pairs = [forward_ad.unpack_dual(tensor) for tensor in (x, *outputs)]
    return [tensor for pair in pairs for tensor in pair]


@pytest.mark.parametrize("name", FUNCTIONS)
def test_a_write_to_an_output_stays_there(name):
    compiled = funcaot.compile(FUNCTIONS[name], backend="eager")
    for actual, expected in zip(
        after_a_write(compiled), after_a_write(FUNCTIONS[name]), strict=True
    ):
        torch.testing.assert_close(actual, expected)


def test_a_write_below_a_transform_stays_there():
    def written(function):
        def body(x):
            (output,) = function(x)
            output.mul_(3)
            return output, x * 1

        x = torch.arange(6.0).reshape(2, 3)
        return torch.func.jvp(body, (x,), (torch.ones(2, 3),))[1]

    function = FUNCTIONS["a copy"]
    compiled = funcaot.compile(function, backend="eager")
    torch.testing.assert_close(written(compiled), written(function))


def test_the_tangent_that_a_generated_rule_makes():
    class Copy(funcaot.Function):
        generate_jvp_rule = True

        @staticmethod
        def forward(x):
            return x.clone()

        @staticmethod
        def setup_context(ctx, inputs, output):
            pass

        @staticmethod
        def backward(ctx, grad):
            return grad

    actual = after_a_write(lambda x: (Copy.apply(x),))
    for tensor, expected in zip(actual, after_a_write(FUNCTIONS["a copy"]), strict=True):
        torch.testing.assert_close(tensor, expected)
