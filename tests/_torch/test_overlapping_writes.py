"""Writes to elements that share memory: each way of writing is refused."""

import pytest
import torch

import funcaot
from funcaot.errors import UnsupportedError
from tests.hostile import COMPILER

ZERO = torch.tensor([0])
WAYS = {
    "method": lambda x: x.mul_(2),
    "fill": lambda x: x.fill_(2),
    "overload": lambda x: torch.ops.aten.fill_.Scalar(x, 2),
    "augmented": lambda x: x.__iadd__(1),
    "set item": lambda x: x.__setitem__(ZERO, 1.0),
    "by index": lambda x: x.index_put_((ZERO,), torch.ones(1), accumulate=True),
    "masked": lambda x: x.masked_fill_(x > 0, 1.0),
    "list": lambda x: torch._foreach_mul_([x], [x.clone()]),
    "list of zeros": lambda x: torch._foreach_zero_([x]),
    "list of two": lambda x: torch._foreach_add_([torch.ones(2), x], 1.0),
    "data": lambda x: x.data.zero_(),
    "detached": lambda x: x.detach().zero_(),
    "initialization": lambda x: torch.nn.init.normal_(x),
    "out": lambda x: torch.mul(x.clone(), 2, out=x),
    "several outs": lambda x: torch.sort(x.clone(), out=(x, torch.empty(3, dtype=torch.long))),
    "list of outs": lambda x: torch.split_with_sizes_copy(
        x.repeat(2), [3, 3], out=[x, torch.empty(3)]
    ),
    "statistics": lambda x: torch.nn.functional.batch_norm(
        torch.ones(2, 3), x, torch.ones(3), training=True
    ),
    "another shape": lambda x: x.unsqueeze_(0).zero_(),
}
BACKENDS = pytest.mark.parametrize("backend", ["eager", COMPILER], ids=["eager", "hostile"])


@BACKENDS
@pytest.mark.parametrize("way", WAYS)
def test_a_write_to_expanded_elements_is_refused(way, backend):
    def function(x):
        expanded = x.expand(3)
        WAYS[way](expanded)
        return expanded * 2

    # Some ops ask before they write, in a capture as in eager.
    refused = "in one place in memory|to a single memory location"
    with pytest.raises((UnsupportedError, RuntimeError), match=refused):
        funcaot.compile(function, backend=backend)(torch.full((1,), 0.5))


@BACKENDS
def test_a_backward_that_writes_to_expanded_elements_is_refused(backend):
    class Expands(torch.autograd.Function):
        @staticmethod
        def forward(ctx, x):
            return x.sum()

        @staticmethod
        def backward(ctx, grad):
            expanded = grad.expand(3)
            torch._foreach_mul_([expanded], 2.0)
            return expanded

    x = torch.ones(3, requires_grad=True)
    with pytest.raises(UnsupportedError, match="in one place in memory"):
        funcaot.compile(Expands.apply, backend=backend)(x).backward()


def test_the_shape_of_expanded_elements_may_change():
    def function(x):
        return x.expand(3).unsqueeze_(0).t_() * 2

    assert funcaot.compile(function, backend=COMPILER)(torch.ones(1)).shape == (3, 1)


@pytest.mark.parametrize("way", ["method", "masked", "out"])
def test_no_elements_share_memory(way):
    def function(x):
        expanded = x.expand(0, 3)
        WAYS[way](expanded)
        return expanded * 2

    x = torch.ones(1, 1)[:0]
    ours, expected = funcaot.compile(function, backend=COMPILER)(x), function(x)
    assert (ours.shape, ours.stride()) == (expected.shape, expected.stride())
