"""Code that asks which tensors are one object: what it reaches, and what it is given."""

import pytest
import torch

import funcaot
from tests.hostile import COMPILER


class Holder:
    pass


HOLDER = Holder()
ASKING = {
    "is": lambda a, b: a + 1 if a is HOLDER.first else a - 1,
    "is not": lambda a, b: a + 1 if b is not HOLDER.first else a - 1,
    "id": lambda a, b: a + 1 if id(a) == id(HOLDER.first) else a - 1,
    "hash": lambda a, b: a + 1 if hash(a) == hash(HOLDER.first) else a - 1,
    "a set": lambda a, b: a + len({a, b, HOLDER.first}),
    "those around": lambda a, b: a + 1 if HOLDER.first is HOLDER.second else a - 1,
}


@pytest.mark.parametrize("function", ASKING.values(), ids=ASKING)
def test_which_are_one(function):
    one, two, three = (torch.full((2,), float(n)) for n in range(3))
    HOLDER.first, HOLDER.second = three, torch.zeros(2)
    compiled = funcaot.compile(function, backend=COMPILER)
    for arguments in ((one, two), (two, one), (one, one), (two, two)):
        assert torch.equal(compiled(*arguments), function(*arguments))
    HOLDER.second = HOLDER.first
    assert torch.equal(compiled(one, two), function(one, two))
    HOLDER.second = torch.zeros(2)
    assert torch.equal(compiled(one, two), function(one, two))
    for arguments in ((three, three), (one, three), (three, two), (one, two)):
        assert torch.equal(compiled(*arguments), function(*arguments))


def test_a_parameter_that_is_an_argument_too():
    linear = torch.nn.Linear(2, 2)

    def function(weight, x):
        kind = torch.relu if type(x) is torch.Tensor else torch.sin
        return kind(linear(x)) @ weight

    compiled = funcaot.compile(function, backend=COMPILER)
    x = torch.randn(2)
    for _ in range(2):
        torch.testing.assert_close(compiled(linear.weight, x), function(linear.weight, x))


def test_a_tensor_with_attributes_may_be_another_one_in_each_call():
    """What per-sample gradients are: kept on a parameter, marked as used, and new in each call."""

    def make():
        weight = torch.nn.Parameter(torch.ones(2))

        def step(x):
            used = hasattr(weight, "samples") and weight.samples.used
            weight.samples = x * weight.detach() * (2 if used else 1)
            weight.samples.used = not used
            return weight.samples.sum(0)

        return step

    plain, compiled = make(), funcaot.compile(make(), backend="eager")
    for size in (3, 4, 5, 6, 7, 8, 9):
        x = torch.randn(size, 2)
        assert torch.equal(compiled(x), plain(x))
    assert len(compiled.entries) <= 4
