"""Rows in a random order, on the default backend."""

import pytest
import torch
from torch.testing import assert_close

import funcaot

SHUFFLES = {
    "rows": lambda x: x.softmax(-1)[torch.randperm(x.shape[0])],
    "of a given number": lambda x: x.sin()[torch.randperm(6)],
    "some": lambda x: x.sin()[torch.randperm(6)[:3]],
    "fewer": lambda x: x.sin()[torch.randperm(4)],
    "selected": lambda x: x.sin().index_select(0, torch.randperm(6)),
    "columns": lambda x: x.sin()[:, torch.randperm(3)],
    "given": lambda x: x[torch.randperm(6)],
    "written": lambda x: x.sin().index_add(0, torch.randperm(6), x.cos()),
}


@pytest.mark.parametrize("shuffle", SHUFFLES.values(), ids=SHUFFLES)
def test_an_order_is_eagers(shuffle):
    compiled = funcaot.compile(shuffle)
    for seed in (0, 1, 1):
        found = []
        for call in (shuffle, compiled):
            torch.manual_seed(seed)
            x = torch.randn(6, 3, requires_grad=True)
            result = call(x)
            weights = torch.arange(result.numel(), dtype=result.dtype).view(result.shape)
            (gradient,) = torch.autograd.grad((result * weights).sum(), x)
            found.append((result, gradient, torch.rand(1)))
        assert_close(found[1], found[0])


def test_what_is_out_of_bounds_is_an_error():
    compiled = funcaot.compile(lambda x: x.sin()[torch.randperm(9)])
    with pytest.raises((IndexError, RuntimeError, funcaot.errors.FuncaotError)):
        compiled(torch.ones(6, 3))
