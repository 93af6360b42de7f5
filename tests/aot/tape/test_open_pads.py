"""Padding by amounts that sizes decide, of tensors that aren't contiguous."""

import pytest
import torch
import torch.nn.functional as F

import funcaot


def padded(x):
    amount = -x.shape[0] % 4
    return F.pad(x.view(x.shape[0], 2, 8).transpose(0, 1), (0, 0, 0, amount)).sin()


@pytest.mark.parametrize("backend", ["eager", "inductor"])
def test_nothing_to_pad_leaves_the_layout(backend):
    """A gradient cuts by an amount that is never positive, and may be nothing."""
    compiled = funcaot.compile(padded, backend=backend)
    for size in (6, 9, 8, 12, 7):
        x = torch.randn(size, 16, requires_grad=True)
        found = []
        for function in (padded, compiled):
            result = function(x)
            (gradient,) = torch.autograd.grad(result.square().sum(), x)
            found.append((result.detach(), result.stride(), gradient, gradient.stride()))
        torch.testing.assert_close(*found)
    assert funcaot.report(compiled).cache_misses <= 3
