"""Graphs with opaque nodes: parts run in the graph's order, at any size."""

import pytest
import torch

import funcaot
from tests.hostile import COMPILER


class ByNumpy(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        return torch.from_numpy(x.detach().numpy() * 2)

    @staticmethod
    def backward(ctx, gradient):
        return gradient * 2


def around_a_number(x, number):
    first = torch.rand(3)
    factor = number.item()
    return first, torch.rand(3) * factor, x * 2, torch.rand(2)


def around_a_function(x, number):
    first = torch.rand(3)
    doubled = ByNumpy.apply(number)
    return first, doubled, torch.rand(3) * x.sum()


@pytest.mark.slow
@pytest.mark.parametrize("function", [around_a_number, around_a_function])
def test_random_numbers_are_drawn_in_the_order_of_the_code(function):
    compiled = funcaot.compile(function)
    with funcaot.config.patch(fallback_random=True):
        for seed in range(3):
            results = []
            for candidate in (compiled, function):
                torch.manual_seed(seed)
                results.append(candidate(torch.ones(2), torch.tensor([2.0])))
            torch.testing.assert_close(*results, rtol=0, atol=0)


def parts_of(function, *arguments):
    """How many graphs Inductor's stand-in is given for a call."""
    given = []

    def backend(module, examples):
        given.append(module)
        return module.forward

    compiled = funcaot.compile(function, backend=backend)
    for _ in range(2):
        torch.testing.assert_close(compiled(*arguments), function(*arguments))
    return len(given), compiled


def checked(x, weight):
    assert (x > 0).all()
    y = (x.sin() + weight.sum(0)).softmax(-1)
    assert torch.isfinite(y).all()
    assert (weight.abs() < 100).all()
    return y.exp()


def test_numbers_are_looked_at_together():
    x, weight = torch.rand(3, 4) + 0.1, torch.rand(4, 4)
    count, compiled = parts_of(checked, x, weight)
    assert count == 1
    for broken in (-x, x * torch.nan):
        with pytest.raises(AssertionError):
            compiled(broken, weight)


def divided(x, number):
    if number == 0:
        return x
    return x // number


def looked_up(x, index):
    if index.max() >= x.shape[0]:
        return x.sum(0)
    return x[index].sum(0)


def solved(x, matrix):
    if (matrix == 0).all():
        return x
    return torch.linalg.solve(matrix, x)


FAILING = [
    (divided, torch.tensor([7, 8]), torch.tensor(2), torch.tensor(0)),
    (looked_up, torch.ones(3, 2), torch.tensor([0, 2]), torch.tensor([0, 9])),
    (solved, torch.ones(2, 1), torch.eye(2), torch.zeros(2, 2)),
]


@pytest.mark.parametrize("backend", ["eager", pytest.param("inductor", marks=pytest.mark.slow)])
@pytest.mark.parametrize(("function", "x", "right", "wrong"), FAILING)
def test_what_fails_for_other_values_waits_until_they_are_known(function, x, right, wrong, backend):
    compiled = funcaot.compile(function, backend=backend)
    for given in (right, wrong, right, wrong, wrong, right):
        torch.testing.assert_close(compiled(x, given), function(x, given))
    assert len(compiled.entries) == 2


def test_a_product_waits_too():
    """A call that leaves shouldn't have done much work."""

    def function(x, weight):
        return (x @ weight).sin() if (x.sum(0) > 0).all() else x.cos() @ weight

    assert parts_of(function, torch.ones(3, 3), torch.ones(3, 3))[0] == 2


def numbers_of_sizes(x, number):
    double = 2 * x.shape[0]
    factor = number.item()
    y = x.new_ones(double, 3) * factor
    assert (y < 100).all()
    return y.sum() * double + x.sum(), double, x.repeat(2, 1)[: double - 1] * factor


@pytest.mark.parametrize("backend", [COMPILER, pytest.param("inductor", marks=pytest.mark.slow)])
def test_numbers_made_of_sizes_on_both_sides_of_a_value(backend):
    compiled = funcaot.compile(numbers_of_sizes, backend=backend)
    for size in range(2, 9):
        x = torch.rand(size, 3)
        given = x, torch.tensor(2.0)
        torch.testing.assert_close(compiled(*given), numbers_of_sizes(*given))
    assert len(compiled.entries) == 2


class Counting(torch.autograd.Function):
    calls = 0

    @staticmethod
    def forward(ctx, x):
        Counting.calls += 1
        return torch.from_numpy(x.detach().numpy() * 2)

    @staticmethod
    def backward(ctx, gradient):
        Counting.calls += 10
        return torch.from_numpy(gradient.numpy() * 2)


def ignored(x):
    Counting.apply(x)
    return x * 3


def asked_for_its_shape(x):
    return x * Counting.apply(x).shape[0]


def without_grad(x):
    with torch.no_grad():
        Counting.apply(x)
    return x.sin()


def differentiated_inside(x):
    x = x.detach().requires_grad_()
    Counting.apply(x).sum().backward()
    return x.grad


@pytest.mark.parametrize("backend", ["eager", pytest.param("inductor", marks=pytest.mark.slow)])
@pytest.mark.parametrize(
    "function", [ignored, asked_for_its_shape, without_grad, differentiated_inside]
)
def test_a_function_runs_that_nobody_uses(function, backend):
    """It may count, print or fill a list."""
    compiled = funcaot.compile(function, backend=backend)
    for size in (3, 3, 4, 5):
        found = []
        for candidate in (function, compiled):
            x, Counting.calls = torch.ones(size, requires_grad=True), 0
            result = candidate(x)
            if result.requires_grad:
                result.sum().backward()
            found.append((result.detach(), x.grad, Counting.calls))
        torch.testing.assert_close(*found)


class DrawingFirst(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        return x * 2

    @staticmethod
    def backward(ctx, gradient):
        return torch.from_numpy((gradient * torch.rand(3)).numpy() * 2)


def test_a_backward_that_draws_before_it_reads_values_draws_once():
    def function(x):
        y = DrawingFirst.apply(x)
        y.sum().backward()
        return y + torch.rand(3)

    compiled = funcaot.compile(function, backend="eager")
    for seed in range(3):
        found = []
        for candidate in (function, compiled):
            torch.manual_seed(seed)
            x = torch.ones(3, requires_grad=True)
            found.append([candidate(x).tolist(), x.grad.tolist(), torch.rand(1).item()])
        assert found[0] == found[1]
