"""Strides of what in-place ops wrote, and of what is computed from it."""

import pytest
import torch

import funcaot
from tests.aot.programs.differential import Inputs, check

ROW = torch.tensor([0])
ONES = torch.ones(3, 2, dtype=torch.float64)

WRITES = {
    "masked_fill_": lambda x: x.masked_fill_(x > 1, 0.5),
    "cumsum_": lambda x: x.cumsum_(0),
    "index_add_": lambda x: x.index_add_(0, ROW, ONES[:1]),
    "index_copy_": lambda x: x.index_copy_(0, ROW, ONES[:1]),
    "scatter_": lambda x: x.scatter_(0, torch.zeros(1, 2, dtype=torch.int64), 1.0),
    "addmm_": lambda x: x.addmm_(ONES @ ONES.t(), ONES),
    "tril_": lambda x: x.tril_(),
    "mul_": lambda x: x.mul_(ONES),
}


def of_an_input(write):
    return lambda x: (write(x), x.sin(), x * 2)[1:]


def of_a_view(write):
    return lambda x: (write(x.t().contiguous().t()), write(x.view_as(x)), x.sin(), x[1:].cos())[2:]


def of_an_intermediate(write):
    def function(x):
        y = x * 2
        write(y)
        return y, y.sin(), y.t()

    return function


def of_a_part(write):
    def function(x):
        y = torch.cat([x, x]) * 2
        z = torch.cat([x.t(), x.t()]).t() * 2
        write(y[1:4])
        write(z[:, 1:3])
        return y.sin(), z.sin()

    return function


@pytest.mark.parametrize("grad", [False, True])
@pytest.mark.parametrize("transposed", [False, True])
@pytest.mark.parametrize("place", [of_an_input, of_a_view, of_an_intermediate, of_a_part])
@pytest.mark.parametrize("name", WRITES)
def test_what_is_computed_from_it_has_eagers_strides(name, place, transposed, grad):
    def make():
        values = torch.linspace(0.3, 1.7, 6, dtype=torch.float64)
        leaf = values.view(2, 3).t() if transposed else values.view(3, 2)
        x = leaf.requires_grad_() * 1.0 if grad else leaf
        return Inputs([x], [], [leaf] if grad else [])

    check(place(WRITES[name]), make, writes=())


@pytest.mark.parametrize("name", ["cumsum_", "masked_fill_", "tril_"])
def test_open_sizes_keep_their_order(name):
    function = of_an_intermediate(WRITES[name])
    compiled = funcaot.compile(function, backend="eager", dynamic=True)
    for rows in (3, 5, 7):
        for x in (torch.rand(rows, 2), torch.rand(2, rows).t(), torch.rand(2, rows).t()):
            for ours, theirs in zip(compiled(x), function(x), strict=True):
                assert ours.stride() == theirs.stride()
                torch.testing.assert_close(ours, theirs)
    assert len(compiled.entries) == 2


def test_strides_of_dimensions_of_one_element():
    def function(x):
        y = x * 2
        y.t_()
        y.sin_()
        return y

    check(function, lambda: Inputs([torch.linspace(0.3, 1.7, 4).view(1, 4)], [], []))
