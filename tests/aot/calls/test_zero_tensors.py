"""Zeros without memory, which autograd's formulas return where a derivative is nothing."""

import pytest
import torch
from torch.testing import assert_close

import funcaot


@pytest.mark.parametrize("backend", ["eager", pytest.param("inductor", marks=pytest.mark.slow)])
def test_a_gradient_that_is_a_zero_tensor(backend):
    def function(x):
        return 0.25 / x

    compiled = funcaot.compile(function, backend=backend)
    for _ in range(4):
        x = torch.randn(6, requires_grad=True)
        found = []
        for each in (compiled, function):
            (first,) = torch.autograd.grad(each(x).abs().sum(), x, create_graph=True)
            found.append(torch.autograd.grad(first.square().sum(), x)[0])
        assert_close(*found)


@pytest.mark.parametrize("backend", ["eager", pytest.param("inductor", marks=pytest.mark.slow)])
def test_an_argument_that_is_a_zero_tensor(backend):
    compiled = funcaot.compile(lambda x: x + 1, backend=backend)
    for _ in range(4):
        assert compiled(torch._efficientzerotensor(3)).tolist() == [1.0] * 3
        assert compiled(torch.ones(3)).tolist() == [2.0] * 3
