"""Code that asks which tensors are one object: what it reaches, and what it is given."""

import pytest
import torch

import funcaot
from funcaot.errors import UnsupportedError
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


class Owner(torch.nn.Module):
    """Asks whether what it is given is one of its parameters."""

    def __init__(self):
        super().__init__()
        self.first, self.second = (torch.nn.Parameter(torch.full((2,), n)) for n in (2.0, 3.0))
        self.rates = {self.first: 0.5, self.second: 7.0}


QUESTIONS = {
    "is": lambda owner, q: 1 if q is owner.first else 2 if q is owner.second else 3,
    "among all": lambda owner, q: sum(p is q for p in owner.parameters()),
    "a dictionary": lambda owner, q: owner.rates.get(q, 1.5),
    "a set": lambda owner, q: len({owner.first, owner.second, q}),
    "id": lambda owner, q: 1 if id(q) == id(owner.first) else 2,
}
# 0 and 1 are the owner's parameters, 2 is one that it doesn't have.
ORDERS = [(0, 0, 0, 1, 1, 2, 2, 0, 1, 2), (2, 2, 2, 0, 0, 1, 2, 0)]


@pytest.mark.parametrize("order", ORDERS, ids=["its own first", "another one first"])
@pytest.mark.parametrize("question", QUESTIONS.values(), ids=QUESTIONS)
def test_whether_it_is_given_a_parameter_of_its_own(question, order):
    owner, x = Owner(), torch.ones(2)
    given = (owner.first, owner.second, torch.nn.Parameter(torch.full((2,), 5.0)))

    def function(q):
        return x * q.sin() + owner.first * question(owner, q)

    compiled = funcaot.compile(function, backend="eager")
    for number in order:
        rows = []
        for each in (function, compiled):
            result = each(given[number])
            wanted = [given[number], owner.second, owner.first][: 2 + (number > 0)]
            gradients = torch.autograd.grad(result.sum(), wanted, allow_unused=True)
            rows.append([result.tolist(), *(g if g is None else g.tolist() for g in gradients)])
        assert rows[0] == rows[1]
    assert len(compiled.entries) <= 3


def test_the_identity_of_an_argument_is_refused_as_a_result():
    compiled = funcaot.compile(lambda x: (x + 1, id(x)), backend="eager")
    with pytest.raises(UnsupportedError, match="which tensor"):
        compiled(torch.ones(2))
