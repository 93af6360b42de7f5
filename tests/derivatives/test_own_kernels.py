"""Ops of users that have a kernel of autograd of their own for a device, as spikingjelly's have."""

import itertools

import pytest
import torch

import funcaot

_numbers = itertools.count()
_kept = []  # a library's kernels last as long as it does


class Doubled(torch.autograd.Function):
    @staticmethod
    def forward(x, scale):
        return x.sin() * scale

    @staticmethod
    def setup_context(ctx, inputs, output):
        x, ctx.scale = inputs
        ctx.save_for_backward(x)

    @staticmethod
    def backward(ctx, gradient):
        (x,) = ctx.saved_tensors
        return gradient * x.cos() * ctx.scale * 2, None

    @staticmethod
    def vmap(info, in_dims, x, scale):
        return Doubled.apply(x, scale), in_dims[0]


def compute(x, scale):
    return x.sin() * scale


KERNELS = {
    "composed": compute,
    "detached": lambda x, scale: compute(x.detach(), scale) + x,
    "Function": Doubled.apply,
}


def by_custom_op(name):
    made = torch.library.custom_op(name, mutates_args=())(_annotated())
    made.register_fake(compute)
    return made


def by_triton_op(name):
    made = torch.library.triton_op(name, mutates_args=())(_annotated())
    made.register_fake(compute)
    return made


def by_custom_op_with_formula(name):
    made = by_custom_op(name)
    made.register_autograd(
        lambda ctx, gradient: (gradient * 100, None), setup_context=lambda ctx, inputs, output: None
    )
    return made


def by_library(name):
    namespace, op = name.split("::")
    library = torch.library.Library(namespace, "FRAGMENT")
    library.define(f"{op}(Tensor x, float scale) -> Tensor")
    library.impl(op, compute, "CPU")
    library.impl(op, compute, "Meta")
    return library


def _annotated():
    def function(x: torch.Tensor, scale: float) -> torch.Tensor:
        return compute(x, scale)

    return function


MADE = [by_custom_op, by_triton_op, by_custom_op_with_formula, by_library]


@pytest.fixture
def make_op():
    def make(made, kernel):
        name = f"op_{next(_numbers)}"
        library = torch.library.Library("own_kernels", "FRAGMENT")
        _kept.extend([library, made(f"own_kernels::{name}")])
        library.impl(name, KERNELS[kernel], "AutogradCPU")
        return getattr(torch.ops.own_kernels, name).default

    return make


def derivative(function, x):
    y = function(x)
    (first,) = torch.autograd.grad(y.sum(), x, create_graph=True)
    found = [y, first]
    if first.requires_grad:
        found += torch.autograd.grad((first * first).sum(), x)
    return [each.detach() for each in found]


@pytest.mark.parametrize("kernel", KERNELS)
@pytest.mark.parametrize("made", MADE)
def test_compiled_calls(made, kernel, make_op):
    op = make_op(made, kernel)

    def function(x):
        return op(x * 2, 3.0) + x

    compiled = funcaot.compile(function, backend="eager")
    for size in (3, 3, 4):
        x = torch.linspace(0, 1, size, requires_grad=True)
        expected = derivative(function, x)
        for found in (compiled, function):
            torch.testing.assert_close(derivative(found, x), expected)
        with funcaot.install():
            torch.testing.assert_close(derivative(function, x), expected)
        with torch.no_grad():
            assert torch.equal(compiled(x), function(x))
    assert 1 <= len(compiled.entries) <= 4


@pytest.mark.parametrize("kernel", ["composed", "detached"])
def test_under_transforms(kernel, make_op):
    op = make_op(by_triton_op, kernel)

    def function(x):
        return op(x * 2, 3.0).sum()

    x = torch.linspace(0, 1, 3)
    compiled = funcaot.compile(function, backend="eager")
    expected = derivative(function, x.clone().requires_grad_())[1]
    torch.testing.assert_close(torch.func.grad(compiled)(x), expected)
    torch.testing.assert_close(torch.func.grad(function)(x), expected)
    if kernel == "composed":
        tangent = torch.func.jvp(compiled, (x,), (torch.ones(3),))[1]
        torch.testing.assert_close(tangent, expected.sum())


def test_a_derivative_that_is_registered_for_such_an_op(make_op):
    op = make_op(by_custom_op, "composed")
    funcaot.register_derivative(op, vjp=lambda gradients, x, scale: (gradients[0] * 7 * x, None))

    def function(x):
        return op(x, 3.0)

    x = torch.linspace(0, 1, 3, requires_grad=True)
    compiled = funcaot.compile(function, backend="eager")
    for _ in range(2):
        found = derivative(compiled, x)
        torch.testing.assert_close(found[0], function(x).detach())
        torch.testing.assert_close(found[1], 7 * x.detach())


@pytest.mark.slow
def test_on_the_default_backend(make_op):
    op = make_op(by_triton_op, "Function")

    def function(x):
        return op(x * 2, 3.0) + x

    compiled = funcaot.compile(function)
    for size in (3, 4, 5):
        x = torch.linspace(0, 1, size, requires_grad=True)
        torch.testing.assert_close(derivative(compiled, x), derivative(function, x))
