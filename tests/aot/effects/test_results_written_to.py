"""A caller's write to a result that autograd saved is an error, however the result was made."""

import pytest
import torch

import funcaot
from tests.hostile import COMPILER

MADE = {
    "cloned": lambda x: x.clone(),
    "copied": lambda x: torch.empty_like(x).copy_(x),
    "copied into a detached one": lambda x: torch.empty_like(x).detach().copy_(x),
    "copied into a clone's": lambda x: x.detach().clone().detach().copy_(x),
    "multiplied in place": lambda x: x.detach().clone().detach().mul_(x),
    "added": lambda x: x + 0,
    "written by index": lambda x: x.detach().clone().detach().index_copy_(0, torch.arange(3), x),
}
USED = {
    "product": lambda x, made: x * made,
    "square": lambda x, made: made**2,
    "in place": lambda x, made: x.clone().mul_(made),
}


@pytest.mark.parametrize("backend", ["eager", COMPILER], ids=["eager", "hostile"])
@pytest.mark.parametrize("used", USED)
@pytest.mark.parametrize("made", MADE)
def test_a_write_to_a_result_that_was_saved(made, used, backend):
    def function(x):
        result = MADE[made](x)
        return result, USED[used](x, result)

    compiled = funcaot.compile(function, backend=backend)
    for _ in range(2):
        leaf = torch.arange(1.0, 4.0, requires_grad=True)
        result, product = compiled(leaf)
        expected = torch.autograd.grad(function(leaf)[1].sum(), leaf)[0]
        torch.testing.assert_close(
            torch.autograd.grad(product.sum(), leaf, retain_graph=True)[0], expected
        )
        with torch.no_grad():
            result.mul_(2)
        with pytest.raises(RuntimeError, match="modified by an inplace operation"):
            torch.autograd.grad(product.sum(), leaf)
