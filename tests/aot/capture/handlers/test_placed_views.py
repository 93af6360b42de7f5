"""Views by ``as_strided`` of what has gaps, before and after a view's shape changes in place."""

import itertools

import pytest
import torch

import funcaot
from funcaot.errors import UnsupportedError

INPUTS = {
    "gaps": lambda base: base.as_strided((2, 2), (4, 2), 0),
    "columns": lambda base: base.view(3, 4)[:, 1:3],
    "dense": lambda base: base[:4].view(2, 2),
}
VIEWS = {
    "a row with gaps": lambda x: x.as_strided((3,), (1,)),
    "by an offset": lambda x: x.as_strided((2,), (1,), 1),
    "overlapping": lambda x: x.as_strided((2, 2), (1, 1)),
    "select": lambda x: x[0],
}
CHANGES = {
    "unsqueeze_": lambda x: x[0].unsqueeze_(0),
    "t_": lambda x: x.view_as(x).t_(),
    "squeeze_": lambda x: x[:1].squeeze_(0),
    "mul_": lambda x: x[0].mul_(3),
    "nothing": lambda x: None,
}


def outcome(function, make):
    base = torch.arange(1.0, 13.0, dtype=torch.float64).requires_grad_()
    results = function(make(base * 1))
    weights = [torch.arange(1.0, 1 + t.numel(), dtype=t.dtype).view(t.shape) for t in results]
    return [t.tolist() for t in results], torch.autograd.grad(results, base, weights)[0].tolist()


@pytest.mark.parametrize("change", CHANGES)
@pytest.mark.parametrize("kind", INPUTS)
def test_gradients_of_views(kind, change):
    refused = 0
    for view, view_first in itertools.product(VIEWS.values(), (True, False)):

        def function(x, view=view, view_first=view_first):
            if view_first:
                placed = view(x)
                CHANGES[change](x)
            else:
                CHANGES[change](x)
                placed = view(x)
            return placed, x * 2

        expected = outcome(function, INPUTS[kind])
        try:
            found = outcome(funcaot.compile(function, backend="eager"), INPUTS[kind])
        except UnsupportedError:
            refused += 1
            continue
        assert found == expected
    assert refused <= (3 if change.endswith("e_") or change == "t_" else 0) + (change == "mul_") * 6
