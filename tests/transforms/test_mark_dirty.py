"""Functions that change inputs in place, under every transform, against in-place operations."""

from __future__ import annotations

import pytest
import torch
import torch.autograd.forward_ad as forward_ad
from torch.func import functionalize, grad, hessian, jacfwd, jvp, vjp, vmap

from funcaot import Function

pytestmark = pytest.mark.filterwarnings("ignore:.torch.jit:DeprecationWarning")

X = torch.linspace(-1.0, 1.5, 6, dtype=torch.float64).reshape(2, 3)
Y = torch.linspace(0.3, 2.0, 6, dtype=torch.float64).reshape(2, 3)


class MulInPlace(Function):
    """Two dirty inputs and a fresh output, everything generated."""

    generate_vmap_rule = True
    generate_jvp_rule = True

    @staticmethod
    def forward(x, y):
        fresh = x + y
        x.mul_(2)
        y.exp_()
        return fresh, y, x

    @staticmethod
    def setup_context(ctx, inputs, output):
        ctx.mark_dirty(*inputs)
        ctx.save_for_backward(output[1])

    @staticmethod
    def backward(ctx, g_fresh, g_y, g_x):
        (y,) = ctx.saved_tensors
        return g_fresh + 2 * g_x, g_fresh + g_y * y


class MulInPlaceByHand(Function):
    """The same with every rule written by hand."""

    forward = staticmethod(MulInPlace.forward)
    backward = staticmethod(MulInPlace.backward)

    @staticmethod
    def setup_context(ctx, inputs, output):
        ctx.mark_dirty(*inputs)
        ctx.save_for_backward(output[1])
        ctx.save_for_forward(output[1])

    @staticmethod
    def jvp(ctx, tx, ty):
        (y,) = ctx.saved_tensors
        fresh = tx + ty
        return fresh, ty.mul_(y), tx.mul_(2)

    @staticmethod
    def vmap(info, in_dims, x, y):
        dx, dy = in_dims
        if dx is None or dy is None:
            raise NotImplementedError
        fresh, y, x = MulInPlaceByHand.apply(x, y.movedim(dy, dx) if dx != dy else y)
        return (fresh, y, x), (dx, dx, dx)


def program(apply):
    """Uses the results, the inputs after the call, and a view taken before it."""

    def run(x, y):
        a, b = x * 1, y * 1
        view = a.view(-1)
        fresh, new_b, new_a = apply(a, b)
        assert new_a is a
        assert new_b is b
        return (fresh * a.sin() + new_b * b + new_a).sum() + (view * view.cos()).sum()

    return run


def plain(a, b):
    fresh = a + b
    a.mul_(2)
    b.exp_()
    return fresh, b, a


TRANSFORMS = {
    "call": lambda h: h,
    "grad": lambda h: grad(h, (0, 1)),
    "vjp": lambda h: lambda x, y: vjp(h, x, y)[1](torch.tensor(2.0).double()),
    "jvp": lambda h: lambda x, y: jvp(h, (x, y), (y, x))[1],
    "jacfwd": lambda h: jacfwd(h, (0, 1)),
    "vmap": vmap,
    "vmap_grad": lambda h: vmap(grad(h, (0, 1))),
    "grad_vmap": lambda h: grad(lambda x, y: vmap(h)(x, y).sum(), (0, 1)),
    "jvp_vmap": lambda h: lambda x, y: jvp(vmap(h), (x, y), (y, x))[1],
    "vmap_jvp": lambda h: vmap(lambda x, y: jvp(h, (x, y), (y, x))[1]),
    "hessian": hessian,
    "vmap_hessian": lambda h: vmap(hessian(h)),
    "functionalize": functionalize,
    "functionalize_grad": lambda h: functionalize(grad(h, (0, 1))),
    "functionalize_vmap_grad": lambda h: functionalize(vmap(grad(h, (0, 1)))),
    "grad_functionalize": lambda h: grad(functionalize(h), (0, 1)),
    "vmap_functionalize": lambda h: vmap(functionalize(h)),
    "functionalize_jvp": lambda h: functionalize(lambda x, y: jvp(h, (x, y), (y, x))[1]),
}


@pytest.mark.parametrize("name", sorted(TRANSFORMS))
@pytest.mark.parametrize("function", [MulInPlace, MulInPlaceByHand], ids=lambda f: f.__name__)
def test_against_plain_operations(function, name):
    transform = TRANSFORMS[name]
    if name == "functionalize_jvp":
        expected = jvp(program(plain), (X, Y), (Y, X))[1]
    else:
        expected = transform(program(plain))(X, Y)
    torch.testing.assert_close(transform(program(function.apply))(X, Y), expected)


def test_dual_numbers():
    with forward_ad.dual_level():
        duals = forward_ad.make_dual(X, Y), forward_ad.make_dual(Y, X)
        got = forward_ad.unpack_dual(program(MulInPlace.apply)(*duals)).tangent
    torch.testing.assert_close(got, jvp(program(plain), (X, Y), (Y, X))[1])


def test_base_autograd():
    def gradients(apply):
        leaves = X.clone().requires_grad_(), Y.clone().requires_grad_()
        return torch.autograd.grad(program(apply)(*leaves), leaves)

    torch.testing.assert_close(gradients(MulInPlace.apply), gradients(plain))


class OneInPlace(Function):
    generate_vmap_rule = True
    generate_jvp_rule = True

    @staticmethod
    def forward(x):
        return x.mul_(3)

    @staticmethod
    def setup_context(ctx, inputs, output):
        ctx.mark_dirty(inputs[0])

    @staticmethod
    def backward(ctx, g):
        return 3 * g


@pytest.mark.parametrize("name", ["call", "grad", "vmap_grad", "jvp", "functionalize", "hessian"])
def test_a_dirty_view_updates_its_base(name):
    def with_view(apply):
        def run(x, y):
            base = x * y
            apply(base[..., 1:])
            return (base * base.sin()).sum()

        return run

    transform = TRANSFORMS[name]
    expected = transform(with_view(lambda v: v.mul_(3)))(X, Y)
    torch.testing.assert_close(transform(with_view(OneInPlace.apply))(X, Y), expected)


def test_in_place_of_an_unbatched_tensor_by_a_batched_one_is_refused():
    class Add(Function):
        generate_vmap_rule = True

        @staticmethod
        def forward(x, y):
            return x.add_(y)

        @staticmethod
        def setup_context(ctx, inputs, output):
            ctx.mark_dirty(inputs[0])

        @staticmethod
        def backward(ctx, g):
            return g, g

    with pytest.raises(RuntimeError, match="shape"):
        vmap(lambda y: Add.apply(X[0].clone(), y))(X)
