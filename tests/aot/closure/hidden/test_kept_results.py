"""Functions that ``functools.cache`` and ``lru_cache`` remember results of, called inside."""

import functools
import gc

import numpy as np
import pytest
import torch
from torch.testing import assert_close

import funcaot
from tests.hostile import COMPILER


@functools.lru_cache(maxsize=8)
def nodes(n):
    return torch.linspace(0, 1, n), {"ones": [torch.from_numpy(np.ones(n, dtype=np.float32))]}


@functools.cache
def table(n):
    return torch.arange(n).float()


class Rules:
    @staticmethod
    @functools.cache
    def weights(n, *, scale):
        return torch.full((n,), scale)


def run(x):
    first, second = nodes(x.shape[-1])
    scaled = x * first + second["ones"][0] + table(x.shape[-1])
    return (scaled * Rules.weights(x.shape[-1], scale=2.0)).sin()


@pytest.fixture(autouse=True)
def _forgotten():
    for function in (nodes, table, Rules.weights):
        function.cache_clear()


@pytest.mark.parametrize("backend", [COMPILER, "inductor"], ids=["hostile", "inductor"])
@pytest.mark.parametrize("eager_first", [False, True])
def test_values_and_what_is_kept(eager_first, backend):
    """A capture left tensors without values there, and refused those that eager had left."""
    compiled = funcaot.compile(run, backend=backend)
    for _ in range(3):
        x = torch.randn(2, 4, requires_grad=True)
        order = (run, compiled) if eager_first else (compiled, run)
        found = []
        for function in order:
            result = function(x)
            found += [result.detach(), *torch.autograd.grad(result.sum(), x)]
        assert_close(found[:2], found[2:])
        assert type(table(4)) is torch.Tensor
        assert table(4).tolist() == [0, 1, 2, 3]
    assert funcaot.report(compiled).cache_misses == 1


def test_results_that_are_forgotten_and_made_again():
    run(torch.ones(4))
    compiled = funcaot.compile(run, backend=COMPILER)
    for _ in range(3):
        x = torch.randn(4)
        assert_close(compiled(x), run(x))
        for function in (nodes, table, Rules.weights):
            function.cache_clear()
        gc.collect()


def test_a_write_to_what_is_kept():
    kept = table(4)
    compiled = funcaot.compile(lambda x: x + table(4), backend=COMPILER)
    assert compiled(torch.ones(4)).tolist() == [1, 2, 3, 4]
    kept.add_(1)
    assert compiled(torch.ones(4)).tolist() == [2, 3, 4, 5]


def test_a_capture_that_fails_leaves_nothing():
    def fails(x):
        return table(5)[0] + x @ x.new_ones(7)

    with pytest.raises(RuntimeError):
        funcaot.compile(fails, backend="eager")(torch.ones(4))
    assert type(table(5)) is torch.Tensor
    assert table(5).tolist() == [0, 1, 2, 3, 4]


class Tabled(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        return x * 2

    @staticmethod
    def backward(ctx, gradient):
        return gradient * table(gradient.shape[0])


@pytest.mark.parametrize("eager_first", [False, True])
def test_a_backward_that_looks_up(eager_first):
    def loss(x):
        return Tabled.apply(x).square().sum()

    compiled = funcaot.compile(loss, backend=COMPILER)
    for _ in range(3):
        found = []
        for function in (loss, compiled) if eager_first else (compiled, loss):
            x = torch.ones(4, requires_grad=True)
            function(x).backward()
            found.append(x.grad)
        assert_close(*found)
        assert type(table(4)) is torch.Tensor


class ByTorch(torch.autograd.Function):
    @staticmethod
    def forward(x):
        return x * table(x.shape[-1])

    @staticmethod
    def setup_context(ctx, inputs, output):
        pass

    @staticmethod
    def backward(ctx, gradient):
        return gradient * table(gradient.shape[-1])


class ByNumPy(ByTorch):
    @staticmethod
    def forward(x):
        product = x * table(x.shape[-1])
        return torch.from_numpy(product.numpy() + 0)


@pytest.mark.parametrize("function", [ByTorch, ByNumPy])
def test_kept_by_a_function_and_used_around_it(function):
    """A Function's forward runs on tensors that no trace knows, and left them there."""

    def run(x):
        return (function.apply(x.sin()) * table(x.shape[-1])).sum()

    compiled = funcaot.compile(run, backend="eager")
    for _ in range(2):
        x = torch.randn(2, 4, requires_grad=True)
        (found,) = torch.autograd.grad(compiled(x), x)
        (expected,) = torch.autograd.grad(run(x), x)
        assert_close(found, expected)
        table.cache_clear()
