"""Backwards compute the gradients that are asked for, as eager's own nodes do."""

import pytest
import torch
from torch.testing import assert_close

import funcaot
from funcaot.aot.segment.wanted_gradients import EngineNeeds


class Watched(torch.autograd.Function):
    """Doubles; counts its backwards."""

    runs = 0

    @staticmethod
    def forward(ctx, x):
        return 2 * x

    @staticmethod
    def backward(ctx, gradient):
        Watched.runs += 1
        return 2 * gradient


def layer(x, weight, bias):
    return torch.tanh(x @ Watched.apply(weight) + bias)


@pytest.fixture
def tensors():
    shapes = [(3, 4), (4, 5), (5,)]
    return [torch.randn(s, dtype=torch.float64, requires_grad=True) for s in shapes]


@pytest.mark.parametrize("create_graph", [False, True])
def test_a_gradient_that_nobody_asks_for_is_not_computed(tensors, create_graph):
    compiled = funcaot.compile(layer, backend="eager")
    x, *_ = tensors
    for _ in range(3):
        Watched.runs = 0
        y = compiled(*tensors)
        (gradient,) = torch.autograd.grad(y.sum(), x, create_graph=create_graph)
        assert Watched.runs == 0
        assert_close(gradient, torch.autograd.grad(layer(*tensors).sum(), x)[0])


def test_what_is_asked_for_may_change_at_any_time(tensors):
    compiled = funcaot.compile(layer, backend="eager")
    for round_ in range(80):
        wanted = [t for i, t in enumerate(tensors) if (round_ // 3 + i) % 3 or round_ % 7 == 0]
        found = torch.autograd.grad(compiled(*tensors).sin().sum(), wanted)
        assert_close(found, torch.autograd.grad(layer(*tensors).sin().sum(), wanted))


def test_second_orders_of_a_partial_gradient(tensors):
    compiled = funcaot.compile(layer, backend="eager")

    def gradients(function):
        y = function(*tensors)
        (force,) = torch.autograd.grad(y.sum(), tensors[0], create_graph=True)
        return torch.autograd.grad((force**2).sum() + y.sum(), tensors)

    for _ in range(6):
        assert_close(gradients(compiled), gradients(layer))


def test_backward_with_inputs_and_without(tensors):
    compiled = funcaot.compile(layer, backend="eager")
    for inputs in ([0], [1, 2], [0, 1, 2], [2], [0]):
        expected = torch.autograd.grad(layer(*tensors).sum(), [tensors[i] for i in inputs])
        for tensor in tensors:
            tensor.grad = None
        compiled(*tensors).sum().backward(inputs=[tensors[i] for i in inputs])
        assert_close(tuple(tensors[i].grad for i in inputs), expected)
        assert all(t.grad is None for i, t in enumerate(tensors) if i not in inputs)
    compiled(*tensors).sum().backward()
    assert all(tensor.grad is not None for tensor in tensors)


def test_outside_of_a_backward_everything_may_be_wanted(tensors):
    y = layer(*tensors)
    needs = EngineNeeds((0, 1), 2)
    for _ in range(40):
        assert needs.of(y.grad_fn.next_functions[0][0]) is None
