"""``.grad`` of arguments whose sizes are open: one program for all sizes, with eager's values."""

import copy

import pytest
import torch

import funcaot


def batch(size, seed):
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(size, 3, generator=generator)


def accumulating(x, w):
    """A step of training on forces, that makes what it is given a leaf."""
    x.requires_grad_()
    energy = (x * w).sin().sum()
    (forces,) = torch.autograd.grad(energy, x, create_graph=True)
    w.grad = None
    forces.square().sum().backward()
    return forces.detach()


def zeroing(x, w):
    if x.grad is not None:
        x.grad.zero_()
    ((x * w) ** 3).sum().backward()
    return x.grad * 2


def reading(x, w):
    before = 0 if x.grad is None else x.grad.sum(1)
    (x * w).exp().sum().backward()
    return before + x.detach().sum(1)


def replacing(x, w):
    old = x.grad
    x.grad = None
    (x * w).cos().sum().backward()
    return x.grad if old is None else old + x.grad.t().contiguous().t()


FUNCTIONS = [accumulating, zeroing, reading, replacing]


def epochs(function, backend):
    """What a function and its compiled twin do with batches that come again, epoch by epoch."""
    sizes = [5, 7, 6, 9]
    w = torch.randn(3, requires_grad=True)
    twins = [([batch(size, size).requires_grad_() for size in sizes], w)]
    twins.append(copy.deepcopy(twins[0]))
    compiled = funcaot.compile(function, backend=backend)
    for _ in range(3):
        for index in range(len(sizes)):
            results = []
            for each, (batches, weights) in zip((function, compiled), twins, strict=True):
                results.append((each(batches[index], weights), batches[index].grad, weights.grad))
            torch.testing.assert_close(*results)
            assert results[0][1] is None or results[0][1].stride() == results[1][1].stride()
    return compiled


@pytest.mark.parametrize("backend", ["eager", pytest.param("inductor", marks=pytest.mark.slow)])
@pytest.mark.parametrize("function", FUNCTIONS)
def test_batches_that_come_again(function, backend):
    compiled = epochs(function, backend)
    assert len(funcaot.report(compiled).entries) <= 4


@pytest.mark.filterwarnings("ignore:grad and param do not obey")
def test_a_gradient_that_lies_in_another_way():
    def step(x):
        (x * x).sum().backward()
        return x.grad + 1

    compiled = funcaot.compile(step, backend="eager")
    for size in (4, 5, 6, 6, 5):
        x, y = batch(size, size).requires_grad_(), batch(size, size).requires_grad_()
        x.grad, y.grad = (torch.ones(3, size).t() for _ in range(2))
        found, expected = compiled(x), step(y)
        torch.testing.assert_close((found, x.grad), (expected, y.grad))
        assert (found.stride(), x.grad.stride()) == (expected.stride(), y.grad.stride())


def test_a_gradient_that_two_arguments_have():
    def step(x, y):
        (x * y).sum().backward()
        return x.grad + 1

    def given(size):
        x, y = batch(size, size).requires_grad_(), batch(size, size + 1).requires_grad_()
        x.grad = y.grad = torch.ones(size, 3)
        return x, y

    compiled = funcaot.compile(step, backend="eager")
    for size in (4, 5, 6, 6, 5):
        one, two = given(size), given(size)
        torch.testing.assert_close(compiled(*one), step(*two))
        torch.testing.assert_close([t.grad for t in one], [t.grad for t in two])


def test_a_gradient_that_is_closed_over():
    def given(size):
        x = batch(size, size).requires_grad_()
        x.grad = torch.ones(size, 3)
        return x

    held = {}

    def step(x):
        x.square().sum().backward()
        return held["gradient"] * 2 + x.detach()

    compiled = funcaot.compile(step, backend="eager")
    for size in (4, 5, 6, 7):
        x, y = given(size), given(size)
        held["gradient"] = x.grad
        found = compiled(x)
        held["gradient"] = y.grad
        torch.testing.assert_close((found, x.grad), (step(y), y.grad))
