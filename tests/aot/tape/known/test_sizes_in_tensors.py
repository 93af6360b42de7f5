"""Tensors that are given as sizes, and numbers read beside objects whose tensors change in size.

Both stay open: two programs serve all values. The oracle is the function in eager mode.
"""

import types

import pytest
import torch
from torch.nn import functional

import funcaot


def written(x, n):
    x[: n - 1] = x[-1] * 2
    return x.exp()


CASES = {
    "zeros": lambda x, n: torch.zeros(n, 3, dtype=x.dtype) + x[0],
    "ones in a tuple": lambda x, n: torch.ones((n, 3), dtype=x.dtype) * x[0],
    "full": lambda x, n: torch.full((n, 3), 0.5, dtype=x.dtype) * x[0],
    "new_zeros": lambda x, n: x.new_zeros(n, 3) + x[0],
    "new_full": lambda x, n: x.new_full((n, 3), 2.0) * x[0],
    "empty": lambda x, n: torch.empty(size=(n, 3), dtype=x.dtype).fill_(2) * x[0],
    "arange": lambda x, n: torch.arange(n, dtype=x.dtype) * x[0, 0],
    "arange between": lambda x, n: torch.arange(2, n, dtype=x.dtype) * x[0, 0],
    "eye": lambda x, n: torch.eye(n, dtype=x.dtype) * x[0, 0],
    "view": lambda x, n: x.t().contiguous().view(3, n, -1).sin(),
    "reshape": lambda x, n: x.reshape((n, -1)).cos(),
    "expand": lambda x, n: x[:1].expand(n, 3).sin(),
    "broadcast_to": lambda x, n: torch.broadcast_to(x[0], (n, 3)).sin(),
    "repeat": lambda x, n: x[:2].repeat(n, 1).sin(),
    "narrow": lambda x, n: torch.narrow(x, 0, 0, n).sin(),
    "topk": lambda x, n: x.topk(n, dim=0).values,
    "pad": lambda x, n: functional.pad(x, (0, n)).sin(),
    "an end of a slice": lambda x, n: x[:n].sin(),
    "a beginning": lambda x, n: x[n - 2 :, 1:].sin(),
    "a write to a slice": lambda x, n: written(x.sin(), n),
}


def _grad(function, x, count):
    (gradient,) = torch.autograd.grad(function(x, count).pow(3).sum(), x, create_graph=True)
    return gradient, torch.autograd.grad(gradient.pow(2).sum(), x, allow_unused=True)[0]


@pytest.mark.parametrize("function", CASES.values(), ids=CASES)
def test_a_tensor_that_is_a_size_stays_open(function):
    compiled = funcaot.compile(function, backend="eager")
    for size in (4, 6, 5, 9, 4, 7):
        torch.manual_seed(size)
        x = torch.rand(2 * size, 3, dtype=torch.float64, requires_grad=True)
        count = torch.tensor([size - 2, 2]).sum()
        torch.testing.assert_close(_grad(compiled, x, count), _grad(function, x, count))
    assert funcaot.report(compiled).cache_misses <= 2


def test_a_float_is_no_size():
    def function(x, size):
        return torch.zeros(size, 3) + x

    for called in (function, funcaot.compile(function, backend="eager")):
        with pytest.raises(TypeError):
            called(torch.ones(3), torch.tensor(2.5))


def by_count(x, batch):
    return torch.zeros(batch.max() + 1, 3, dtype=x.dtype).index_add(0, batch, x)


def by_item(x, batch):
    return torch.zeros(batch.max().item() + 1, 3, dtype=x.dtype).index_add(0, batch, x)


def by_bincount(x, batch):
    counts = torch.bincount(batch)
    return x.new_zeros(counts.shape[0], 3).index_add(0, batch, x) / counts[:, None]


def by_unique(x, batch):
    kinds, where = torch.unique(batch, return_inverse=True)
    return x.new_zeros(len(kinds), 3).index_add(0, where, x)


@pytest.mark.parametrize(
    ("pool", "backend"),
    [(by_count, "inductor"), *((pool, "eager") for pool in (by_item, by_bincount, by_unique))],
)
def test_numbers_read_beside_an_object_whose_tensors_change(pool, backend):
    """The tensors become arguments of a second program, in which numbers stay open at once."""

    def function(data, scale):
        return pool(data.x.sin(), data.batch).pow(2).sum() * scale

    compiled = funcaot.compile(function, backend=backend)
    for rows, groups in ((7, 3), (9, 4), (12, 5), (8, 6), (11, 2)):
        torch.manual_seed(rows)
        batch = torch.cat([torch.arange(groups), torch.randint(0, groups, (rows - groups,))])
        x = torch.rand(rows, 3, dtype=torch.float64, requires_grad=True)
        data = types.SimpleNamespace(x=x, batch=batch)
        found, expected = compiled(data, 0.5 * rows), function(data, 0.5 * rows)
        torch.testing.assert_close(found, expected)
        torch.testing.assert_close(*(torch.autograd.grad(each, x) for each in (found, expected)))
    assert funcaot.report(compiled).cache_misses <= 2


def test_an_argument_that_changes_with_an_objects_tensors():
    def function(data, rows, factor):
        return (data.x.sum(0) * factor).sin() + rows.cos().sum(0)

    compiled = funcaot.compile(function, backend="eager")
    for size in (4, 6, 5, 9):
        data = types.SimpleNamespace(x=torch.rand(size, 3))
        given = data, torch.rand(size + 3, 3), 2 + size
        torch.testing.assert_close(compiled(*given), function(*given))
    assert funcaot.report(compiled).cache_misses == 2
