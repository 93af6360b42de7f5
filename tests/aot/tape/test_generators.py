"""Draws from a generator that the user made: eager's numbers on every backend, and its state."""

from functools import partial

import pytest
import torch
from torch.func import vmap

import funcaot

BACKENDS = ["eager", "inductor"]
GENERATOR = torch.Generator()
LOOKS = {"contiguous": lambda x: x, "transposed": lambda x: x.t(), "steps": lambda x: x[::2, ::2]}

_METHODS = {
    "uniform_": (1.0, 2.0),
    "normal_": (1.0, 2.0),
    "bernoulli_": (0.3,),
    "random_": (),
}


def _method(name, arguments, x, g):
    return getattr(x.clone(), name)(*arguments, generator=g)


def _of_a_view(name, arguments, x, g):
    y = torch.zeros(12, 12)
    getattr(y[: 2 * len(x) : 2, : x.shape[1]], name)(*arguments, generator=g)
    getattr(y.t()[1], name)(*arguments, generator=g)
    return y


DRAWS = {
    **{name: partial(_method, name, arguments) for name, arguments in _METHODS.items()},
    **{f"{name} of a view": partial(_of_a_view, name, _METHODS[name]) for name in _METHODS},
    "random_ up to": lambda x, g: x.clone().random_(9, generator=g),
    "random_ from": lambda x, g: x.clone().random_(3, 9, generator=g),
    "bernoulli": lambda x, g: torch.bernoulli(x, generator=g),
    "bernoulli of a number": lambda x, g: torch.bernoulli(x, 0.3, generator=g),
    "bernoulli_ of a tensor": lambda x, g: x.clone().bernoulli_(x, generator=g),
    "normal of mean": lambda x, g: torch.normal(x, 1.0, generator=g),
    "normal of std": lambda x, g: torch.normal(0.0, x, generator=g),
    "normal of sizes": lambda x, g: torch.normal(0.0, 1.0, (2, 3), generator=g),
    "normal of tensors": lambda x, g: torch.normal(x, x + 1, generator=g),
    "normal out": lambda x, g: torch.normal(
        x, x + 1, generator=g, out=torch.empty(0, dtype=x.dtype)
    ),
    "poisson": lambda x, g: torch.poisson(x, generator=g),
    "binomial": lambda x, g: torch.binomial(x.round(), x, generator=g),
    "gamma": lambda x, g: torch._standard_gamma(x, generator=g),
    "multinomial": lambda x, g: torch.multinomial(x, 2, generator=g),
    "rrelu": lambda x, g: torch.rrelu(x - 0.5, 0.1, 0.3, True, generator=g),
    "rand": lambda x, g: torch.rand(3, 4, generator=g),
    "randn": lambda x, g: torch.randn(3, 4, generator=g),
    "randint": lambda x, g: torch.randint(2, 9, (3,), generator=g),
    "randperm": lambda x, g: torch.randperm(5, generator=g),
    "randperm out": lambda x, g: torch.randperm(
        5, generator=g, out=torch.empty(0, dtype=torch.int64)
    ),
}


def _drawn(call, seed):
    GENERATOR.manual_seed(seed)
    torch.manual_seed(seed)
    value = call()
    return value, value.stride(), GENERATOR.get_state(), torch.get_rng_state()


def _compare(function, compiled, *args, calls=3):
    for seed in range(calls):
        expected, found = (_drawn(partial(each, *args), seed) for each in (function, compiled))
        torch.testing.assert_close(found, expected, rtol=0, atol=0, equal_nan=True)


@pytest.mark.parametrize("look", LOOKS)
@pytest.mark.parametrize("name", DRAWS)
def test_each_op_draws_from_it(name, look):
    def function(x):
        return DRAWS[name](LOOKS[look](x), GENERATOR)

    _compare(function, funcaot.compile(function, backend="eager"), torch.rand(4, 6))


@pytest.mark.slow
@pytest.mark.parametrize("name", DRAWS)
def test_each_op_draws_from_it_on_inductor(name):
    for _ in range(2):  # Inductor's cache on disk serves the second.

        def function(x):
            return DRAWS[name](x.t(), GENERATOR)

        _compare(function, funcaot.compile(function), torch.rand(4, 6))

    def without(x):
        return DRAWS[name](x.t(), None)

    with funcaot.config.patch(fallback_random=True):
        _compare(without, funcaot.compile(without), torch.rand(4, 6, dtype=torch.float64))


def test_inductors_cache_keeps_no_copy_of_it():
    found = []
    for _ in range(2):
        generator = torch.Generator().manual_seed(3)

        @funcaot.compile
        def function(x):
            ints = x.clone().random_(0, 9, generator=generator)  # noqa: B023 (called below)
            return ints + torch.bernoulli(x, 0.5, generator=generator)  # noqa: B023

        found.append([function(torch.ones(5)), function(torch.ones(5)), generator.get_state()])
    generator.manual_seed(3)
    expected = [
        torch.ones(5).random_(0, 9, generator=generator)
        + torch.bernoulli(torch.ones(5), 0.5, generator=generator)
        for _ in range(2)
    ]
    for each in found:
        torch.testing.assert_close(each, [*expected, generator.get_state()], rtol=0, atol=0)


READERS = {
    "item": lambda x, g: x * torch.rand(1, generator=g).item(),
    "branch": lambda x, g: x * 2 if torch.rand(1, generator=g) > 0.5 else x + 1,
    "mask": lambda x, g: x[torch.rand(4, generator=g) > 0.5].sum(0),
    "trunc_normal_": lambda x, g: torch.nn.init.trunc_normal_(torch.empty(3, 4), generator=g),
}


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("name", READERS)
def test_values_that_depend_on_it(name, backend):
    """A call that leaves a program, and the next that it tries, draw the same."""

    def function(x):
        return READERS[name](x, GENERATOR)

    _compare(function, funcaot.compile(function, backend=backend), torch.rand(4, 6), calls=6)


@pytest.mark.parametrize("in_dim", [0, 1, 2])
@pytest.mark.parametrize(
    "name", ["bernoulli of a number", "normal of tensors", "normal of std", "bernoulli_"]
)
def test_under_vmap(name, in_dim):
    def function(x, _):
        return DRAWS[name](x, GENERATOR)

    def mapped(call, x):
        return vmap(call, (in_dim, 0), randomness="different")(x, torch.rand(3))

    sizes = [4, 6]
    sizes.insert(in_dim, 3)
    compiled = funcaot.compile(function, backend="eager")
    _compare(partial(mapped, function), partial(mapped, compiled), torch.rand(sizes))


@pytest.mark.parametrize("backend", BACKENDS)
def test_chunks_of_a_vmap_inside_draw_the_same(backend):
    def function(x):
        return vmap(lambda y: y * torch.rand(3), randomness="same", chunk_size=2)(x)

    with funcaot.config.patch(fallback_random=True):
        _compare(function, funcaot.compile(function, backend=backend), torch.rand(5, 3))
