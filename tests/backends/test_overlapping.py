"""What is scattered into an expanded tensor out of place stays where it was put."""

import itertools

import pytest
import torch
from torch.testing import assert_close

import funcaot
from funcaot.backends.overlapping import may_overlap

ROWS = torch.tensor([1, 3])
COLUMNS = torch.tensor([0, 2])


def index_put(x, v):
    return x.sin().expand(4, 4).index_put((ROWS, COLUMNS), v[:, 0], accumulate=True)


def index_put_of_a_number(x, v):
    return x.sum().expand(4, 4).index_put((ROWS,), v)


def index_add(x, v):
    return (x + 1).expand(4, 4).index_add(0, ROWS, v)


def filled(x, v):
    return torch.full((), 2.0).expand(4, 4).index_add(0, ROWS, v) + x


def windows(x, v):
    return (x.flatten() + 1).unfold(0, 2, 1).index_put((COLUMNS,), v[:, :2])


@pytest.mark.parametrize("function", [index_put, index_put_of_a_number, index_add, filled, windows])
def test_as_in_eager(function):
    compiled = funcaot.compile(function)
    for seed in range(2):
        generator = torch.Generator().manual_seed(seed)
        x = torch.randn(1, 4, generator=generator, requires_grad=True)
        v = torch.randn(2, 4, generator=generator, requires_grad=True)
        ours, expected = compiled(x, v), function(x, v)
        assert_close(ours, expected)
        assert ours.stride() == expected.stride()
        weights = torch.arange(float(expected.numel())).view(expected.shape)
        found = torch.autograd.grad((ours * weights).sum(), [x, v])
        assert_close(found, torch.autograd.grad((expected * weights).sum(), [x, v]))


def test_gradient_of_a_selection_per_sample():
    index, weights = torch.tensor([0, 2]), torch.tensor([1.0, -1.0])

    def row(x):
        stacked = torch.stack([x[k] for k in range(4)], -1)
        return (torch.index_select(stacked, -1, index) * weights).sum(-1)

    per_sample = torch.vmap(torch.func.grad(row))
    compiled = funcaot.compile(per_sample)
    for rows in (4, 5, 6):
        x = torch.randn(rows, 4)
        assert_close(compiled(x), per_sample(x))


@pytest.mark.parametrize(
    ("shape", "stride"), list(itertools.product([(2, 3), (1, 3), (3, 2, 2)], [0, 1, 2, 3, 4, 6]))
)
def test_overlap_is_found(shape, stride):
    base = torch.arange(1000)
    for rest in itertools.product([0, 1, 2, 3, 4, 6], repeat=len(shape) - 1):
        tensor = base.as_strided(shape, (stride, *rest))
        if tensor.unique().numel() < tensor.numel():
            assert may_overlap(tensor), tensor.stride()
    assert not may_overlap(torch.empty(shape))
    assert not may_overlap(torch.empty(shape).transpose(0, 1)[:, :1])
