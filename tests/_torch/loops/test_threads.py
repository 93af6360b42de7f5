"""Loops with two threads: what Inductor generates, and that it is right."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest
import torch

import funcaot

sys.path.insert(0, str(Path(__file__).parent.parent))
from generated_code import lines_in_loops, run_for_code


@pytest.fixture(autouse=True)
def two_threads():
    threads = torch.get_num_threads()
    torch.set_num_threads(2)
    yield
    torch.set_num_threads(threads)


def gradients(function, *inputs):
    """Gradients of a compiled function, and the code that Inductor generated for it."""
    compiled = funcaot.compile(function)

    def run():
        return torch.autograd.grad(compiled(*inputs).sum(), inputs)

    return run_for_code(run)


def rows_of_a_table(index):
    return lambda table, x: (table[index].sin() * x).exp()


@pytest.mark.parametrize(("rows", "atomic"), [(3, False), (4096, True)])
def test_a_small_table_is_added_to_by_one_thread(rows, atomic):
    generator = torch.Generator().manual_seed(0)
    index = torch.randint(0, rows, (2000,), generator=generator)
    function = rows_of_a_table(index)
    table = torch.randn(rows, 24, requires_grad=True)
    x = torch.randn(2000, 24, requires_grad=True)
    found, code = gradients(function, table, x)
    assert ("atomic_add" in code) is atomic
    assert "#pragma omp parallel" in code  # the rest is for both
    expected = torch.autograd.grad(function(table, x).sum(), (table, x))
    torch.testing.assert_close(found, expected, rtol=1e-4, atol=1e-4)


def test_what_follows_in_the_same_kernel_is_right():
    index = torch.arange(6000) % 5

    def function(table, x):
        rows = table[index]
        return (rows * x).sum() * table.exp() + x.square().mean(0)

    table, x = torch.randn(5, 16, requires_grad=True), torch.randn(6000, 16, requires_grad=True)
    found, _ = gradients(function, table, x)
    expected = torch.autograd.grad(function(table, x).sum(), (table, x))
    torch.testing.assert_close(found, expected, rtol=1e-3, atol=1e-3)


def test_threads_are_not_started_in_a_loop():
    """Sums over the middle of (64, 13, 3): three numbers are less than a vector."""

    def function(x):
        return (x[:, :, None] - x[:, None]).sin().sum(2).cos()

    x = torch.randn(64, 13, 3, requires_grad=True)
    found, code = gradients(function, x)
    assert "#pragma omp parallel" in code
    assert lines_in_loops(code, "#pragma omp parallel") == []
    torch.testing.assert_close(found, torch.autograd.grad(function(x).sum(), (x,)))
