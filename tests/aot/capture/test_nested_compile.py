"""Compiled functions inside compiled functions, passed to them, and recursion."""

import pytest
import torch
from torch.testing import assert_close

import funcaot
from tests.aot.segment import orders_cases as cases


def gradients(function, order, *inputs):
    total = function(*inputs).sum()
    for _ in range(order):
        found = torch.autograd.grad(total, inputs, create_graph=True)
        total = sum((g**2).sum() for g in found)
    return found


def test_a_compiled_function_inside_another_is_inlined_with_its_rules():
    inner = cases.compiled(cases.odd_rules)

    def outer(x, w):
        return inner(x, w).sin() * x.sum()

    def plain(x, w):
        return cases.odd_rules(x, w).sin() * x.sum()

    compiled = cases.compiled(outer)
    inputs = cases.operands()
    for order in (1, 2, 3):
        assert_close(gradients(compiled, order, *inputs), gradients(plain, order, *inputs))
    assert funcaot.report(inner).graphs_compiled == 0


def test_a_compiled_module_inside_a_compiled_function():
    net = cases.Net()
    module = funcaot.compile(net, backend="eager")
    compiled = cases.compiled(lambda x: module(x).sum())
    x = torch.randn(6, 4, dtype=torch.float64, requires_grad=True)
    assert_close(
        torch.autograd.grad(compiled(x), [x, *net.parameters()]),
        torch.autograd.grad(net(x).sum(), [x, *net.parameters()]),
    )


def test_transforms_of_a_compiled_function_inside_another():
    inner = cases.compiled(lambda x: (cases.First.apply(x) ** 2).sum())
    plain = inner.function

    def outer(f):
        return lambda x: torch.func.vmap(torch.func.grad(f))(x)

    x = torch.randn(3, 4, dtype=torch.float64)
    assert_close(cases.compiled(outer(inner))(x), outer(plain)(x))


def test_a_compiled_function_as_an_argument():
    first = cases.compiled(lambda x: x.sin())
    second = cases.compiled(lambda x: x.cos())

    def apply_twice(f, x):
        return f(f(x))

    compiled = cases.compiled(apply_twice)
    x = torch.randn(3, requires_grad=True)
    for f in (first, second):
        assert_close(compiled(f, x), apply_twice(f.function, x))
        assert_close(
            torch.autograd.grad(compiled(f, x).sum(), x),
            torch.autograd.grad(apply_twice(f.function, x).sum(), x),
        )


def test_recursion_with_an_end_is_inlined():
    @cases.compiled
    def power(x, n):
        return x if n == 0 else x * power(x, n - 1)

    x = torch.randn(3, requires_grad=True)
    assert_close(power(x, 3), x**4)


def test_recursion_without_end_is_an_error_that_says_so():
    @cases.compiled
    def endless(x):
        return endless(x) + 1

    with pytest.raises(funcaot.errors.UnsupportedError, match="endless calls itself"):
        endless(torch.randn(3))


def test_a_plain_function_that_recurses_raises_what_eager_raises():
    def endless(x):
        return endless(x + 1)

    with pytest.raises(RecursionError):
        cases.compiled(endless)(torch.randn(3))
