"""Checks of values in graphs that ``vmap`` batches, with a function between it and the graph."""

import pytest
import torch
import torch.nn.functional as F
from torch.func import vmap

import funcaot


@pytest.mark.parametrize("dims", [(0, 0), (0, None), (None, 0), (1, 1)])
def test_binary_cross_entropy(dims):
    """Torch has no rule for the op that checks; it holds if it holds for all examples."""
    compiled = funcaot.compile(lambda p, t: F.binary_cross_entropy(p, t), backend="eager")
    p, t = (torch.rand(3, 3, dtype=torch.float64)[0 if dim is None else slice(3)] for dim in dims)

    def batched(function, p, t):
        return vmap(lambda p, t: function(p, t) * 2, dims)(p, t)

    for _ in range(2):
        torch.testing.assert_close(batched(compiled, p, t), batched(F.binary_cross_entropy, p, t))
    for call in (compiled, F.binary_cross_entropy):
        with pytest.raises(RuntimeError, match="between 0 and 1"):
            batched(call, p + 3, t)


def test_classes():
    compiled = funcaot.compile(lambda index: F.one_hot(index, 4), backend="eager")
    index = torch.tensor([[0, 1], [2, 3]])
    found = vmap(lambda row: compiled(row) * 2)(index)
    assert torch.equal(found, F.one_hot(index, 4) * 2)
