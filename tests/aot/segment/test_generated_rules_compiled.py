"""Functions whose rules are generated, compiled and transformed, against the plain operations."""

# ruff: noqa: B008

import pytest
import torch
from torch import func
from torch.testing import assert_close

import funcaot


class Wave(funcaot.Function):
    """What the Functions below share: batching is generated."""

    generate_vmap_rule = True

    @staticmethod
    def forward(x, w):
        return (x * w).sin()


class FromBackward(Wave):
    """Forward mode is generated."""

    generate_jvp_rule = True

    @staticmethod
    def setup_context(ctx, inputs, output):
        ctx.save_for_backward(*inputs)

    @staticmethod
    def backward(ctx, cotangent):
        x, w = ctx.saved_tensors
        slope = (x * w).cos() * cotangent
        return slope * w, slope * x


class FromJvp(Wave):
    """Reverse mode is generated."""

    generate_backward_rule = True

    @staticmethod
    def setup_context(ctx, inputs, output):
        ctx.save_for_forward(*inputs)

    @staticmethod
    def jvp(ctx, moving_x, moving_w):
        x, w = ctx.saved_tensors
        moved = 0 if moving_x is None else moving_x * w
        moved = moved if moving_w is None else moved + moving_w * x
        return (x * w).cos() * moved


def plain(x, w):
    return (x * w).sin()


def program(rule):
    return lambda x, w: rule(x, w).exp() * x


def total(f, w):
    return lambda x: f(x, w).sum()


# Each takes a function of (x, w), how to compile, and the operands.
TRANSFORMS = {
    "compile(grad)": lambda f, c, x, w: c(lambda x: func.grad(total(f, w))(x))(x),
    "grad(compile)": lambda f, c, x, w: func.grad(total(c(f), w))(x),
    "vmap(compile)": lambda f, c, x, w: func.vmap(c(f), in_dims=(0, None))(x, w[0]),
    "jvp(compile)": lambda f, c, x, w: func.jvp(c(f), (x, w), (w, x)),
    "compile(jvp)": lambda f, c, x, w: c(lambda x, w: func.jvp(f, (x, w), (w, x)))(x, w),
    "vmap(grad(compile))": lambda f, c, x, w: func.vmap(
        func.grad(lambda x, w, g=c(f): g(x, w).sum())
    )(x, w),
    "compile(vmap(grad))": lambda f, c, x, w: c(func.vmap(func.grad(lambda x, w: f(x, w).sum())))(
        x, w
    ),
    "grad(vmap(compile))": lambda f, c, x, w: func.grad(lambda x, g=c(f): func.vmap(g)(x, w).sum())(
        x
    ),
    "jvp(grad(compile))": lambda f, c, x, w: func.jvp(func.grad(total(c(f), w)), (x,), (w,)),
    "grad(jvp(compile))": lambda f, c, x, w: func.grad(
        lambda x, g=c(f): func.jvp(g, (x, w), (w, x))[1].sum()
    )(x),
    "hessian(compile)": lambda f, c, x, w: func.hessian(total(c(f), w[0]))(x[0]),
    "compile(hessian)": lambda f, c, x, w: c(lambda x: func.hessian(total(f, w[0]))(x))(x[0]),
    "vmap(jacfwd(jacrev(compile)))": lambda f, c, x, w: func.vmap(func.jacfwd(func.jacrev(c(f))))(
        x, w
    ),
}


def order(f, count, x, w):
    x, w = x.clone().requires_grad_(), w.clone().requires_grad_()
    value, found = f(x, w).sum(), []
    for _ in range(count):
        gradients = torch.autograd.grad(value, (x, w), create_graph=True)
        found += gradients
        value = sum((gradient**2).sum() for gradient in gradients)
    return found


def eagerly(f):
    return f


def compiling(f):
    return funcaot.compile(f, backend="eager")


RULES = pytest.mark.parametrize("rule", [FromBackward, FromJvp])


@pytest.fixture
def operands():
    generator = torch.Generator().manual_seed(0)
    return [torch.randn(2, 3, dtype=torch.float64, generator=generator) for _ in range(2)]


@RULES
@pytest.mark.parametrize("transform", TRANSFORMS.values(), ids=TRANSFORMS)
def test_under_a_transform(rule, transform, operands):
    expected = transform(program(plain), eagerly, *operands)
    assert_close(transform(program(rule.apply), compiling, *operands), expected)


@RULES
@pytest.mark.parametrize("count", [1, 2, 3])
def test_orders(rule, count, operands):
    compiled = compiling(program(rule.apply))
    expected = order(program(plain), count, *operands)
    for _ in range(3):
        assert_close(order(compiled, count, *operands), expected)
