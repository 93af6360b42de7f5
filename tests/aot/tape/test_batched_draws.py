"""Random ops under vmap: what is compiled raises where eager does; rows are alike as in eager."""

import pytest
import torch
from torch import nn
from torch.func import vmap
from torch.nn import functional

import funcaot

pytestmark = pytest.mark.filterwarnings("ignore::UserWarning")

MODES = ["error", "different", "same"]
FILLS = {
    "normal_": lambda t: t.normal_(),
    "normal_ of numbers": lambda t: t.normal_(1.0, 2.0),
    "uniform_": lambda t: t.uniform_(2, 3),
    "bernoulli_": lambda t: t.bernoulli_(),
    "bernoulli_ of a tensor": lambda t: t.bernoulli_(torch.full((99,), 0.3)),
    "exponential_": lambda t: t.exponential_(),
    "cauchy_": lambda t: t.cauchy_(),
    "geometric_": lambda t: t.geometric_(0.01),
    "log_normal_": lambda t: t.log_normal_(),
    "random_": lambda t: t.random_(),
    "random_ to": lambda t: t.random_(100_000),
    "random_ from": lambda t: t.random_(5, 100_000),
    "init.normal_": nn.init.normal_,
    "init.uniform_": nn.init.uniform_,
}
MADE = {
    "empty": lambda x: torch.empty(99),
    "empty_like": torch.empty_like,
    "clone": torch.clone,
}
FUNCTIONS = {
    "gumbel_softmax": functional.gumbel_softmax,
    "rrelu": lambda x: functional.rrelu(x - 1, training=True),
    "dropout": lambda x: functional.dropout(x, 0.5),
    "dropout in place": lambda x: functional.dropout(x.clone(), 0.5, inplace=True),
    "rand": lambda x: x + torch.rand(99),
    "randint_like": lambda x: torch.randint_like(x, 0, 10**6),
    "randperm": lambda x: x + torch.randperm(99),
    "torch.normal": lambda x: torch.normal(x, 1.0),
    "torch.normal without a batch": lambda x: x + torch.normal(torch.zeros(99), torch.ones(99)),
    "torch.bernoulli": torch.bernoulli,
    "torch.bernoulli without a batch": lambda x: x + torch.bernoulli(torch.full((99,), 0.5)),
    "new_empty": lambda x: x + x.new_empty(99).normal_(),
    "a part": lambda x: x + (lambda b: (b[:90].normal_(), b)[1])(torch.zeros(99)),
}
for fill_name, fill in FILLS.items():
    for made_name, made in MADE.items():
        FUNCTIONS[f"{fill_name} of {made_name}"] = lambda x, fill=fill, made=made: x + fill(made(x))


def _outcome(function, mode):
    """The first words of an error, or whether all rows are the same."""
    x = torch.full((4, 99), 0.5)
    try:
        result = vmap(function, randomness=mode)(x)
    except RuntimeError as error:
        return type(error), str(error)[:50]
    return all(torch.equal(result[0], row) for row in result)


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("function", FUNCTIONS.values(), ids=FUNCTIONS)
def test_what_vmap_says_of_randomness(function, mode, either_way):
    compiled = funcaot.compile(function, backend="eager")
    expected = _outcome(function, mode)
    for _ in range(2):
        assert _outcome(compiled, mode) == expected


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("name", ["normal_ of empty", "uniform_ of empty_like", "gumbel_softmax"])
def test_the_same_on_inductor(name, mode, either_way):
    assert _outcome(funcaot.compile(FUNCTIONS[name]), mode) == _outcome(FUNCTIONS[name], mode)


def test_gradients_of_draws_are_of_the_same_draw(either_way):
    def function(x):
        return (x * torch.empty_like(x).normal_()).sum()

    compiled = funcaot.compile(function, backend="eager")
    x = torch.ones(5, 3)
    found = vmap(torch.func.grad_and_value(compiled), randomness="different")(x)
    torch.testing.assert_close(found[0].sum(-1), found[1])
