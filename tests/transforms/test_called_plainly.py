"""Forward mode over a compiled function with a Function that is no node: its rule, or an error."""

from __future__ import annotations

import pytest
import torch
from torch.autograd import forward_ad
from torch.func import grad, jacfwd, jvp, vmap
from torch.testing import assert_close

import funcaot
from funcaot.errors import RuleError, UnsupportedError

X = torch.tensor([0.3, 1.2, -0.7], dtype=torch.double)


class Box:
    def __init__(self, scale):
        self.scale = scale


class Rounded(torch.autograd.Function):
    """Its gradient isn't that of what it computes."""

    @staticmethod
    def forward(ctx, x, box):
        ctx.save_for_backward(x)
        ctx.scale = box.scale
        return (x * box.scale).round()

    @staticmethod
    def backward(ctx, gradient):
        return 7 * gradient * ctx.scale, None


class Detaching(Rounded):
    @staticmethod
    def backward(ctx, gradient):
        return (7 * gradient * ctx.scale).detach(), None


class Inside(Rounded):
    @staticmethod
    def backward(ctx, gradient):
        with torch.enable_grad():
            x = ctx.saved_tensors[0].detach().requires_grad_()
            return torch.autograd.grad(7 * x * ctx.scale, x, gradient)[0], None


class WithJvp(Rounded):
    @staticmethod
    def jvp(ctx, tangent, _):
        return tangent * 5


def called(function, *, hides=False):
    def compute(x):
        y = 3 * x
        if hides:
            with torch.no_grad():
                z = x.sin()
            y = y + z
        return function.apply(y, Box(2 * x.detach()))

    return funcaot.compile(compute, backend="eager")


def tangent_of(compute):
    with forward_ad.dual_level():
        return forward_ad.unpack_dual(compute(forward_ad.make_dual(X, X))).tangent


@pytest.mark.parametrize("function", [Rounded, Inside])
def test_transpose_of_the_backward(function):
    expected = 7 * 2 * X * 3 * X
    assert_close(jvp(called(function), (X,), (X,))[1], expected)
    assert_close(tangent_of(called(function)), expected)
    assert_close(jacfwd(called(function))(X), torch.diag(42 * X))
    assert_close(grad(lambda x: called(function)(x).sum())(X), 42 * X)


@pytest.mark.parametrize("function", [Detaching, WithJvp])
def test_no_transpose(function):
    with pytest.raises((RuleError, UnsupportedError), match=function.__name__):
        jvp(called(function), (X,), (X,))
    with pytest.raises((RuleError, UnsupportedError), match=function.__name__):
        tangent_of(called(function))


def test_beside_no_grad():
    with pytest.raises(UnsupportedError, match="calls Rounded, which is no node"):
        tangent_of(called(Rounded, hides=True))


class Keeping(torch.autograd.Function):
    generate_vmap_rule = True

    @staticmethod
    def forward(ctx, x):
        with torch.enable_grad():
            ctx.x = x.detach().requires_grad_()
            ctx.y = ctx.x.sin() * ctx.x
        return ctx.y.detach()

    @staticmethod
    def backward(ctx, gradient):
        return torch.autograd.grad(ctx.y, ctx.x, gradient)[0]


class Adding(Keeping):
    @staticmethod
    def backward(ctx, gradient):
        ctx.y.backward(gradient)
        return ctx.x.grad


class Again(Keeping):
    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x)
        return x.sin() * x

    @staticmethod
    def backward(ctx, gradient):
        x = ctx.saved_tensors[0].detach().requires_grad_()
        with torch.enable_grad():
            y = x.sin() * x
        return torch.autograd.grad(y, x, gradient)[0]


def test_kept_graph():
    expected = X.sin() + X * X.cos()
    compiled = funcaot.compile(lambda x: Keeping.apply(x), backend="eager")
    assert_close(jvp(compiled, (X,), (X,))[1], expected * X)
    assert_close(vmap(grad(compiled))(X), expected)
    added = funcaot.compile(lambda x: Adding.apply(x), backend="eager")
    assert_close(vmap(grad(added))(X), expected)
    with pytest.raises((RuleError, UnsupportedError), match="Adding"):
        jvp(added, (X,), (X,))


@pytest.mark.parametrize("inside", [False, True])
def test_graph_under_vmap(inside):
    def derivative(function):
        called = vmap(grad(lambda x: function.apply(x)))
        return funcaot.compile(called, backend="eager") if inside else called

    with funcaot.install():
        with pytest.raises(UnsupportedError, match="save_for_backward"):
            derivative(Keeping)(X)
        assert_close(derivative(Again)(X), X.sin() + X * X.cos())
