"""Random numbers with the eager backend: eager's values, and its generator's state afterwards."""

import pytest
import torch
import torch.nn.functional as F

import funcaot

DRAWS = {
    "bernoulli_": lambda x: torch.empty_like(x).bernoulli_(0.5),
    "uniform_": lambda x: torch.empty_like(x).uniform_(),
    "normal_": lambda x: torch.empty_like(x).normal_(),
    "exponential_": lambda x: torch.empty_like(x).exponential_(),
    "random_": lambda x: torch.empty_like(x).random_(0, 5),
    "slice_": lambda x: torch.zeros(6, 8)[::2, ::2].uniform_(),
    "bernoulli": lambda x: torch.bernoulli(x.sigmoid()),
    "rand_like": torch.rand_like,
    "normal": lambda x: torch.normal(x, x.abs()),
    "poisson": lambda x: torch.poisson(x.abs()),
    "randperm": lambda x: torch.randperm(5),
    "dropout": lambda x: F.dropout(x, 0.5),
    "alpha_dropout": lambda x: F.alpha_dropout(x, 0.5, True),
    "rrelu": lambda x: F.rrelu(x, training=True),
    "gumbel_softmax": F.gumbel_softmax,
}
INPUTS = {
    "contiguous": lambda: torch.randn(3, 4),
    "transposed": lambda: torch.randn(4, 3).t(),
    "permuted": lambda: torch.randn(2, 3, 4).permute(2, 0, 1),
}


@pytest.mark.parametrize("make", INPUTS.values(), ids=INPUTS)
@pytest.mark.parametrize("draw", DRAWS.values(), ids=DRAWS)
def test_values_and_generator_equal_eager(draw, make):
    x = make()
    compiled = funcaot.compile(lambda x: draw(x), backend="eager")
    results = []
    for function in (draw, compiled, compiled):
        torch.manual_seed(7)
        results.append((function(x), torch.get_rng_state()))
    for value, state in results[1:]:
        assert torch.equal(value, results[0][0])
        assert torch.equal(state, results[0][1])


@pytest.mark.parametrize("draw", DRAWS.values(), ids=DRAWS)
def test_what_nobody_reads_is_drawn_where_nothing_is_computed(draw):
    def ends_with_a_number(x):
        draw(x)
        return x.dim()

    x = torch.randn(3, 4)
    compiled = funcaot.compile(ends_with_a_number, backend="eager")
    states = []
    for function in (ends_with_a_number, compiled, compiled, compiled):
        torch.manual_seed(7)
        assert function(x) == 2
        states.append(torch.get_rng_state())
    for state in states[1:]:
        assert torch.equal(state, states[0])


def test_a_backward_sees_the_numbers_that_the_forward_drew():
    compiled = funcaot.compile(lambda x: F.dropout(x.sin(), 0.5), backend="eager")
    x = torch.randn(50, requires_grad=True)
    for _ in range(2):
        y = compiled(x)
        (gradient,) = torch.autograd.grad(y.sum(), x)
        assert torch.equal(gradient == 0, y == 0)


def test_what_a_compiler_draws_is_drawn_again():
    """Inductor times products of random matrices while it compiles for a GPU."""

    def drawing(module, inputs):
        torch.rand(7)
        return module.forward

    compiled = funcaot.compile(lambda x: x * torch.rand(3), backend=drawing)
    for seed in range(2):
        torch.manual_seed(seed)
        found = compiled(torch.ones(3)), torch.rand(2)
        torch.manual_seed(seed)
        assert torch.equal(found[0], torch.rand(3))
        assert torch.equal(found[1], torch.rand(2))
