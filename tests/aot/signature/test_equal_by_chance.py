"""Sizes that are equal in one call by chance: programs don't count on it once they weren't."""

import itertools
import random

import pytest
import torch

import funcaot


def energy(x, i, j, y):
    return ((x[i] - x[j]) ** 2).sum() + (y * 2).sum() * x.exp().sum()


def batches(sizes):
    for n, m, p in sizes:
        x = torch.randn(n, 3, requires_grad=True)
        yield x, torch.randint(n, (m,)), torch.randint(n, (m,)), torch.randn(p)


def programs(function, calls):
    compiled = funcaot.compile(function, backend="eager")
    for call in calls:
        (found,) = torch.autograd.grad(compiled(*call), call[0])
        (expected,) = torch.autograd.grad(function(*call), call[0])
        torch.testing.assert_close(found, expected)
    return len(funcaot.report(compiled).entries)


@pytest.mark.parametrize("order", list(itertools.permutations([(4, 6, 6), (6, 6, 5), (5, 4, 5)])))
def test_each_pair_is_equal_once(order):
    """The second call tells what isn't always equal: the third program, at most, is for all."""
    sizes = [(3, 5, 4), *order, (7, 7, 7), (6, 5, 4)]
    assert programs(energy, batches(sizes)) == 2


@pytest.mark.parametrize("seed", range(10))
def test_drawn_sizes(seed):
    draw = random.Random(seed)
    sizes = [tuple(draw.randint(3, 6) for _ in range(3)) for _ in range(25)]
    assert programs(energy, batches(sizes)) <= 4


def test_what_has_always_been_equal_is_one_size():
    """Nothing is asked about sizes that always are: the program knows."""

    def function(x, y):
        return torch.cat([x * y, x + y]).sum() if x.shape[0] == y.shape[0] else x.sum()

    compiled = funcaot.compile(function, backend="eager")
    for size in (3, 5, 4, 7):
        x, y = torch.randn(2, size, 3)
        torch.testing.assert_close(compiled(x, y), function(x, y))
    assert len(funcaot.report(compiled).entries) == 2
    x, y = torch.randn(5, 3), torch.randn(4, 3)
    torch.testing.assert_close(compiled(x, y), function(x, y))
    x = torch.randn(4, 3)
    torch.testing.assert_close(compiled(x, y), function(x, y))
