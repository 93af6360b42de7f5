"""``torch.einsum`` of more than two operands, whose order opt_einsum says by their sizes."""

import types

import pytest
import torch
from torch.testing import assert_close

import funcaot

asked = []


def contract_path(equation, *operands, optimize, shapes=False):
    """Contract the last two first where there are many rows, as opt_einsum would."""
    rows = int(operands[0][0] if shapes else operands[0].shape[0])
    asked.append(rows)
    return ([(0, 1), (0, 1)] if rows < 100 else [(1, 2), (0, 1)]), ""


@pytest.fixture(autouse=True)
def _planner(monkeypatch):
    """Stands for opt_einsum, which asks each size for a number."""
    settings = torch.backends.opt_einsum.m
    monkeypatch.setattr(settings, "_opt_einsum", types.SimpleNamespace(contract_path=contract_path))
    monkeypatch.setattr(settings, "enabled", True)
    settings.is_available.cache_clear()
    yield
    monkeypatch.undo()
    settings.is_available.cache_clear()


def chained(x, w, v):
    return torch.einsum("ab,bc,cd->ad", x, w, v)


def as_list(x, w, v):
    return torch.einsum("ab,bc,cd->ad", [x, w, v])


def by_numbers(x, w, v):
    return torch.einsum(x, [0, 1], w, [1, 2], v, [2, 3], [0, 3])


def rows_twice(x, w, v):
    return torch.einsum("ab,bc,ec->ae", x, w, x @ w)


@pytest.mark.parametrize("function", [chained, as_list, by_numbers, rows_twice])
def test_one_program_for_all_sizes_of_an_order(function):
    """Each size was a program of its own."""
    compiled = funcaot.compile(function, backend="eager")
    w, v = torch.randn(4, 4), torch.randn(4, 9)
    for rows, programs in ((5, 1), (6, 2), (7, 2), (40, 2), (200, 3), (300, 3), (20, 3)):
        x = torch.randn(rows, 4, requires_grad=True)
        found, expected = compiled(x, w, v), function(x, w, v)
        assert torch.equal(found, expected)
        assert_close(*(torch.autograd.grad(y.sum(), x) for y in (found, expected)))
        assert funcaot.report(compiled).cache_misses == programs


def test_without_open_sizes_torch_asks():
    asked.clear()
    compiled = funcaot.compile(chained, backend="eager", dynamic=False)
    given = torch.randn(5, 4), torch.randn(4, 4), torch.randn(4, 9)
    assert torch.equal(compiled(*given), chained(*given))
    assert set(asked) == {5}
