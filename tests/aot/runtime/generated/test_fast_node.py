"""Generated nodes of backwards: at every order, as eager, and without the general path."""

import pytest
import torch
from torch import nn
from torch.testing import assert_close

import funcaot


class Doubled(torch.autograd.Function):
    """A Function of a user."""

    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x)
        return x * x

    @staticmethod
    def backward(ctx, gradient):
        (x,) = ctx.saved_tensors
        return 3 * x * gradient  # deliberately not the derivative


ORDERS = {
    "wave": lambda x, w: (x @ w).sin().exp(),
    "cube": lambda x, w: x * x * x * w.sum(),
    "softmax": lambda x, w: torch.softmax(x @ w, -1) * x,
    "two outputs": lambda x, w: (x.tanh() * w, (x * w).exp()),
    "an output that is saved": lambda x, w: (x * w).exp(),
    "a Function": lambda x, w: Doubled.apply(x @ w),
    "gradients that are what came": lambda x, w: x + w,
    "random": lambda x, w: nn.functional.dropout(x @ w, 0.3).square(),
}


def _orders(function, x, w, order):
    found = []
    torch.manual_seed(3)
    result = function(x, w)
    outputs = result if isinstance(result, tuple) else (result,)
    total = sum((k + 1) * output.sin().sum() for k, output in enumerate(outputs))
    for _ in range(order):
        gradients = torch.autograd.grad(total, (x, w), create_graph=True)
        found += gradients
        total = sum(gradient.square().sum() for gradient in gradients)
    return found


@pytest.mark.parametrize("function", ORDERS.values(), ids=ORDERS)
def test_generated_nodes_at_every_order(function, monkeypatch):
    compiled = funcaot.compile(function, backend="eager")
    x, w = (torch.randn(3, 3, dtype=torch.float64, requires_grad=True) for _ in range(2))
    expected = _orders(function, x, w, 4)
    for _ in range(6):
        assert_close(_orders(compiled, x, w, 4), expected)

    def refuse(*args):
        raise AssertionError("a backward took the general path")

    monkeypatch.setattr("funcaot.aot.calls.call.SegmentFunction.backward", refuse)
    assert_close(_orders(compiled, x, w, 3), expected[:6])


def test_generated_nodes_run_once_or_as_often_as_they_are_retained():
    compiled = funcaot.compile(ORDERS["wave"], backend="eager")
    x, w = (torch.randn(3, 3, dtype=torch.float64, requires_grad=True) for _ in range(2))
    for _ in range(5):
        total = compiled(x, w).sum()
        (first,) = torch.autograd.grad(total, x, create_graph=True)
        (again,) = torch.autograd.grad(total, x, create_graph=True)
        assert_close(first, again)
        (second,) = torch.autograd.grad(first.sum(), x, retain_graph=True)
        assert_close(torch.autograd.grad(again.sum(), x)[0], second)
        torch.autograd.grad(first.sum(), x)
        with pytest.raises(RuntimeError, match="second time"):
            torch.autograd.grad(first.sum(), x)


def test_a_backward_that_saves_nothing_may_run_again_at_the_next_order():
    compiled = funcaot.compile(lambda x: 2 * x, backend="eager")
    x = torch.randn(3, dtype=torch.float64, requires_grad=True)
    for _ in range(5):
        y, tangent = compiled(x), torch.randn(3, dtype=torch.float64, requires_grad=True)
        for _ in range(2):
            (g,) = torch.autograd.grad(y, x, tangent, create_graph=True, retain_graph=False)
            assert_close(torch.autograd.grad(g.sum(), tangent)[0], torch.full_like(x, 2))


@pytest.mark.parametrize("function", [ORDERS["wave"], ORDERS["cube"], ORDERS["softmax"]])
def test_generated_nodes_with_open_sizes(function):
    compiled = funcaot.compile(function, backend="eager", dynamic=True)
    w = torch.randn(3, 3, dtype=torch.float64, requires_grad=True)
    if function is ORDERS["cube"]:
        w = torch.randn(1, dtype=torch.float64, requires_grad=True)
    for size in (4, 5, 4, 7, 2, 1, 6, 5, 8, 3):
        x = torch.randn(size, 3, dtype=torch.float64, requires_grad=True)
        for _ in range(3):
            assert_close(_orders(compiled, x, w, 3), _orders(function, x, w, 3))


def test_gradients_that_require_grad_or_do_not():
    function = ORDERS["wave"]
    compiled = funcaot.compile(function, backend="eager")
    x, w = (torch.randn(3, 3, dtype=torch.float64, requires_grad=True) for _ in range(2))
    for k in range(12):
        given = torch.randn(3, 3, dtype=torch.float64, requires_grad=k % 3 == 0)
        results = []
        for f in (function, compiled):
            found = torch.autograd.grad(f(x, w), (x, w), given, create_graph=True)
            wanted = (x, w, given) if given.requires_grad else (x, w)
            total = sum(gradient.sin().sum() for gradient in found)
            results.append([*found, *torch.autograd.grad(total, wanted)])
        assert_close(results[1], results[0])


def test_saved_tensors_hooks_at_the_second_order():
    function = ORDERS["softmax"]
    compiled = funcaot.compile(function, backend="eager")
    x, w = (torch.randn(3, 3, dtype=torch.float64, requires_grad=True) for _ in range(2))
    for k in range(9):
        results = []
        for f in (function, compiled):
            if k % 3:
                results.append(_orders(f, x, w, 2))
                continue
            with torch.autograd.graph.saved_tensors_hooks(
                lambda tensor: tensor.clone().t().contiguous().t(), lambda tensor: tensor
            ):
                results.append(_orders(f, x, w, 2))
        assert_close(results[1], results[0])


def test_a_write_to_what_the_second_order_needs_is_an_error():
    compiled = funcaot.compile(lambda x: x**3, backend="eager")
    for _ in range(6):
        x = torch.randn(3, dtype=torch.float64, requires_grad=True)
        (first,) = torch.autograd.grad(compiled(x).sum(), x, create_graph=True)
        with torch.no_grad():
            x.add_(1)
        with pytest.raises(RuntimeError, match="modified by an inplace operation"):
            torch.autograd.grad(first.sum(), x)
