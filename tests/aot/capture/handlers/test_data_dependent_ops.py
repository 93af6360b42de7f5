"""Functions of torch that look at values run as opaque nodes, to any order."""

import pytest
import torch

import funcaot

MASK = torch.tensor([True, False, True, False])


def combine(x):
    return torch.combinations(x.sin(), 2).exp().sum(0)


def correlate(x):
    return torch.corrcoef(torch.stack([x.sin(), x.exp(), x * x])).sin()


def put(x):
    return torch.index_put(x * x, (MASK,), x[:2].sin()).exp()


def fill(x):
    return torch.index_fill(x * x, 0, torch.tensor([1, 1, 2]), x.sum()).exp()


def loss(x):
    return torch.nn.functional.gaussian_nll_loss(x, x.sin(), x * x + 1)


FUNCTIONS = [combine, correlate, put, fill, loss]


def derivatives(function, x):
    x = x.clone().requires_grad_()
    output = function(x)
    (first,) = torch.autograd.grad(output.sin().sum(), x, create_graph=True)
    (second,) = torch.autograd.grad(first.sin().sum(), x)
    return output.detach(), first.detach(), second


@pytest.mark.parametrize("function", FUNCTIONS)
def test_values_and_two_orders(function):
    compiled = funcaot.compile(function, backend="eager")
    for scale in (1.0, 2.0):
        x = torch.linspace(0.1, 1.0, 4, dtype=torch.float64) * scale
        torch.testing.assert_close(derivatives(compiled, x), derivatives(function, x))


@pytest.mark.parametrize("function", FUNCTIONS)
def test_forward_mode_and_vmap(function):
    compiled = funcaot.compile(function, backend="eager")
    x = torch.linspace(0.1, 1.0, 4, dtype=torch.float64)
    torch.testing.assert_close(
        torch.func.jvp(compiled, (x,), (x.cos(),)), torch.func.jvp(function, (x,), (x.cos(),))
    )
    rows = torch.stack([x, x * 2])
    expected = torch.stack([function(row) for row in rows])
    torch.testing.assert_close(torch.vmap(compiled)(rows), expected)


def test_each_call_reads_its_own_values():
    compiled = funcaot.compile(torch.nn.functional.gaussian_nll_loss, backend="eager")
    x, ones = torch.zeros(3), torch.ones(3)
    compiled(x, x, ones)
    with pytest.raises(ValueError, match="negative"):
        compiled(x, x, -ones)


def test_linear_functions_have_gradients_without_grad():
    x = torch.linspace(0.1, 1.0, 4, dtype=torch.float64, requires_grad=True)
    for function in (lambda x: torch.combinations(x, 2),):
        output = funcaot.compile(function, backend="eager")(x)
        (gradient,) = torch.autograd.grad(output.sum(), x, create_graph=True)
        assert not gradient.requires_grad


def test_one_hot_with_a_number_of_classes_is_one_program():
    one_hot = torch.nn.functional.one_hot
    compiled = funcaot.compile(lambda labels: one_hot(labels, 3), backend="eager")
    for labels in (torch.tensor([0, 2, 1]), torch.tensor([1, 0, 0])):
        torch.testing.assert_close(compiled(labels), one_hot(labels, 3))
    assert len(compiled.entries) == 1


def test_masked_reductions_read_the_layout_of_a_traced_tensor():
    x, mask = torch.linspace(0, 1, 4), MASK
    for function in (torch.masked.logsumexp, torch.masked.std, torch.masked.sum):
        options = {"unbiased": False} if function is torch.masked.std else {}

        def reduce(x, mask, function=function, options=options):
            return function(x, 0, mask=mask, **options)

        compiled = funcaot.compile(reduce, backend="eager")
        torch.testing.assert_close(compiled(x, mask), reduce(x, mask))
        torch.testing.assert_close(compiled(x, ~mask), reduce(x, ~mask))
