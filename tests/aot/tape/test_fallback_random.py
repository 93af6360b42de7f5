"""`config.fallback_random`: on the default backend too, random ops draw eager's numbers."""

import pytest
import torch
import torch.nn.functional as F

import funcaot

CASES = {
    "dropout": lambda q: F.dropout(q, 0.3),
    "after softmax": lambda q: F.dropout(q.softmax(-1), 0.3),
    "attention": lambda q: F.scaled_dot_product_attention(q, q, q, dropout_p=0.3),
    "features": lambda q: F.dropout2d(q.softmax(-1), 0.3),
    "rand_like": lambda q: q * torch.rand_like(q.transpose(1, 2)).transpose(1, 2),
    "in place": lambda q: q * torch.empty(2, 4, 6, 8).normal_(),
}


@pytest.mark.parametrize("case", CASES)
def test_numbers_are_those_of_eager(case):
    function = CASES[case]
    q = torch.randn(2, 4, 6, 8, requires_grad=True)
    found = []
    with funcaot.config.patch(fallback_random=True):
        for call in (function, funcaot.compile(function)):
            torch.manual_seed(0)
            for _ in range(2):
                value = call(q)
                found.append((value, *torch.autograd.grad(value.sin().sum(), q)))
    torch.testing.assert_close(found[2:], found[:2])
