"""Functions whose forward or backward returns what it was given and saves, at each transform."""

import pytest
import torch
from torch.func import functionalize, grad, jacrev, jvp, vmap
from torch.testing import assert_close

import funcaot


def by_closed_form(ctx, gradient):
    return gradient


def by_values(ctx, gradient):
    gradient.nonzero()
    return gradient


def by_autograd(ctx, gradient):
    (x,) = ctx.saved_tensors
    with torch.enable_grad():
        y = x.detach().requires_grad_()
        z = y * 1
    torch.autograd.grad(z, y, gradient)
    return gradient


def function_of(style, rule):
    class Old(funcaot.Function):
        @staticmethod
        def forward(ctx, x):
            ctx.save_for_backward(x)
            return x

        backward = staticmethod(rule)

    class New(funcaot.Function):
        generate_vmap_rule = True

        @staticmethod
        def forward(x):
            return x * 1

        @staticmethod
        def setup_context(ctx, inputs, output):
            ctx.save_for_backward(*inputs)

        backward = staticmethod(rule)

    return {"old": Old, "new": New}[style]


def total(function):
    return lambda x: function(x).sin().sum()


TRANSFORMS = {
    "grad": lambda f, x: grad(total(f))(x[0]),
    "grad of grad": lambda f, x: grad(lambda x: grad(total(f))(x).sum())(x[0]),
    "jacrev": lambda f, x: jacrev(f)(x[0]),
    "vmap": lambda f, x: vmap(f)(x),
    "vmap of grad": lambda f, x: vmap(grad(total(f)))(x),
    "jacrev of jacrev": lambda f, x: jacrev(jacrev(total(f)))(x[0]),
    "functionalize": lambda f, x: functionalize(grad(total(f)))(x[0]),
    "compiled jacrev": lambda f, x: jacrev(funcaot.compile(f, backend="eager"))(x[0]),
    "jvp of grad": lambda f, x: jvp(grad(total(f)), (x[0],), (x[1],)),
}


@pytest.mark.parametrize("transform", TRANSFORMS)
@pytest.mark.parametrize("rule", [by_closed_form, by_values, by_autograd])
@pytest.mark.parametrize("style", ["old", "new"])
def test_is_the_identity(style, rule, transform):
    if style == "new" and transform == "jvp of grad":
        pytest.skip("it has no jvp, which only old-style Functions get without asking")
    x = torch.linspace(-1, 1, 6, dtype=torch.float64).reshape(2, 3)
    found = TRANSFORMS[transform](function_of(style, rule).apply, x)
    assert_close(found, TRANSFORMS[transform](lambda x: x * 1, x))
