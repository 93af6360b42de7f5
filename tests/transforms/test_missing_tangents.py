"""A ``jvp`` rule may return None for an output that has no tangent: it is zero."""

from __future__ import annotations

import pytest
import torch
from torch.autograd import forward_ad
from torch.func import grad, hessian, jacfwd, jvp, vmap

import funcaot


def with_view(x, y):
    return x * x, y.view_as(y)


def with_sum(x, y):
    return x * x, y.sum(0)


def with_write(x, y):
    return x * x, y.mul_(2)


def with_same(x, y):
    return x * x, y


def with_integers(x, y):
    return x * x, (y > 0.5).long()


def made_of(compute, *, materialize):
    class Part(funcaot.Function):
        generate_vmap_rule = True

        @staticmethod
        def forward(x, y):
            return compute(x, y)

        @staticmethod
        def setup_context(ctx, inputs, output):
            ctx.x = inputs[0]
            ctx.set_materialize_grads(materialize)
            if compute is with_write:
                ctx.mark_dirty(inputs[1])

        @staticmethod
        def jvp(ctx, tangent, _):
            return 2 * ctx.x * tangent, None

    return Part.apply


def pushed(function, x, y):
    return jvp(lambda x: function(x, y * 1), (x,), (torch.ones_like(x),))[1]


def by_duals(function, x, y):
    with forward_ad.dual_level():
        outputs = function(forward_ad.make_dual(x, torch.ones_like(x)), y * 1)
        tangents = [forward_ad.unpack_dual(output).tangent for output in outputs]
    pairs = zip(outputs, tangents, strict=True)
    return [torch.zeros_like(output) if t is None else t for output, t in pairs]


def batched(function, x, y):
    return vmap(lambda x, y: jacfwd(lambda x: function(x, y * 1))(x))(x, y)


WAYS = [pushed, by_duals, batched]
COMPUTED = [with_view, with_sum, with_write, with_same, with_integers]


@pytest.mark.parametrize("way", WAYS, ids=lambda way: way.__name__)
@pytest.mark.parametrize("compute", COMPUTED, ids=lambda compute: compute.__name__)
def test_is_zero(compute, way):
    x, y = torch.rand(2, 3), torch.rand(2, 3)
    wanted = way(lambda x, y: compute(x, y.clone()), x, y)
    for materialize in (True, False):
        function = made_of(compute, materialize=materialize)
        torch.testing.assert_close(way(function, x, y), wanted)


def test_compiled():
    x, y = torch.rand(2, 3), torch.rand(2, 3)
    function = made_of(with_view, materialize=False)
    wanted = pushed(with_view, x, y)
    inside = funcaot.compile(lambda x, y: pushed(function, x, y), backend="eager")
    around = funcaot.compile(function, backend="eager")
    torch.testing.assert_close(inside(x, y), wanted)
    torch.testing.assert_close(pushed(around, x, y), wanted)


class Square(funcaot.Function):
    generate_jvp_rule = True
    generate_vmap_rule = True

    @staticmethod
    def forward(x, y):
        return x * x * y

    @staticmethod
    def setup_context(ctx, inputs, output):
        ctx.save_for_backward(*inputs)

    @staticmethod
    def backward(ctx, gradient):
        x, y = ctx.saved_tensors
        first = gradient.transpose(0, 1).contiguous().transpose(0, 1) * 2 * x * y
        return first, gradient.expand(2, *gradient.shape)[0] * x * x


def test_generated_for_an_expanded_operand():
    x, y = torch.rand(3, dtype=torch.float64), torch.rand(2, 3, dtype=torch.float64)

    def function(square):
        return lambda x, y: square(x.expand(2, 3), y).sin()

    wanted = jacfwd(function(lambda x, y: x * x * y), 1)(x, y)
    compiled = funcaot.compile(function(Square.apply), backend="eager")
    torch.testing.assert_close(jacfwd(compiled, 1)(x, y), wanted)


class Beside(funcaot.Function):
    """A result beside another one that is constant."""

    generate_jvp_rule = True
    generate_vmap_rule = True

    @staticmethod
    def forward(x, y):
        return x.sin() * y, x * 3

    @staticmethod
    def setup_context(ctx, inputs, output):
        ctx.save_for_backward(*inputs)
        ctx.mark_non_differentiable(output[1])

    @staticmethod
    def backward(ctx, gradient, _):
        x, y = ctx.saved_tensors
        return gradient * x.cos() * y, gradient * x.sin()


def second_derivatives(function, x, y):
    def loss(x, y):
        first, second = vmap(function)(x, y)
        return first.sin().sum() + second.sin().sum()

    pushed = jvp(grad(lambda x: loss(x, y)), (x,), (y,))[1]
    return pushed, hessian(loss)(x, y)


def test_derivatives_beside_a_constant_result():
    x = torch.rand(3, dtype=torch.float64)
    y = x + 1

    def plain(x, y):
        return x.sin() * y, (x * 3).detach()

    wanted = second_derivatives(plain, x, y)
    compiled = funcaot.compile(Beside.apply, backend="eager")
    torch.testing.assert_close(second_derivatives(compiled, x, y), wanted)
