"""What is written in place doesn't read what it overwrites, whatever Inductor makes of copies."""

import pytest
import torch
from torch.testing import assert_close

import funcaot
from tests.hostile import COMPILER


def by_index(x):
    y = x.sin()
    y[torch.arange(11, -1, -1)] = y.clone()
    return y


def by_own_values(x):
    y = x.argsort(descending=True)
    return y.put_(y.clone(), y * 2)


def through_a_view(x):
    y = x.sin()
    y.view(3, 4)[torch.tensor([2, 0, 1])] = y.view(3, 4).clone()
    return y


def shifted(x):
    y = x.sin()
    y[1:] = y[:-1].clone()
    return y


def shifted_back(x):
    y = x.sin().view(3, 4)
    y[:-1] = y[1:] + 0
    return y


def diagonals(x):
    y = (x[:9] * 2).view(3, 3)
    y.diagonal().copy_(y[0].clone())
    return y


def scattered(x):
    y = x.cos()
    return y.scatter_(0, torch.arange(11, -1, -1), y.clone())


def masked_in_what_is_expanded(x):
    y = x.sum().expand(12)
    return y.index_put((x > 0.5,), x.new_zeros(()))


def indexed_in_what_is_expanded(x):
    y = x[:3].sin().expand(4, 3)
    return y.index_put((torch.tensor([1, 3]),), x[:3])


def added_to_what_is_expanded(x):
    return x.new_full((), 2.0).expand(12).index_add(0, torch.tensor([1, 3, 1]), x[:3])


def masked_before_a_gradient(x):
    def loss(y):
        y = y.clone()
        y[y > 0.5] = 0
        return y.sum()

    return torch.func.grad(loss)(x)


def in_an_input(x):
    z = x.clone()
    z[torch.arange(11, -1, -1)] = z * 1
    x.copy_(z)
    return x.sum()


FUNCTIONS = [
    by_index,
    by_own_values,
    through_a_view,
    shifted,
    shifted_back,
    diagonals,
    scattered,
    masked_in_what_is_expanded,
    indexed_in_what_is_expanded,
    added_to_what_is_expanded,
    masked_before_a_gradient,
    in_an_input,
]


def everything(x):
    return [function(x.clone()) for function in FUNCTIONS], in_an_input(x)


@pytest.mark.parametrize("backend", ["inductor", COMPILER], ids=["inductor", "hostile"])
@pytest.mark.parametrize("grad", [False, True])
def test_reads_come_before_writes(backend, grad):
    compiled = funcaot.compile(everything, backend=backend)
    for scale in (1.0, 0.5):
        leaf = torch.linspace(0.1, scale, 12, dtype=torch.float64, requires_grad=grad)
        mine, other = leaf.clone(), leaf.clone()
        results, expected = compiled(mine), everything(other)
        assert_close(results, expected)
        assert_close(mine, other)
        if grad:
            outputs = [[y for y in [*r[0], r[1]] if y.requires_grad] for r in (results, expected)]
            found, wanted = (
                torch.autograd.grad([(y * y).sum() for y in made], leaf) for made in outputs
            )
            assert_close(found, wanted)
