"""Graphs with opaque nodes: parts run in the graph's order, at any size."""

import pytest
import torch

import funcaot


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
