"""Torch's random states inside: refused by name, and what only draws goes on as eager does."""

import pytest
import torch

import funcaot
from funcaot.errors import UnsupportedError
from tests.hostile import COMPILER

GENERATOR = torch.Generator()
BACKENDS = pytest.mark.parametrize("backend", ["eager", COMPILER], ids=["eager", "hostile"])


class Holder:
    generator = torch.Generator()


def saved_and_restored(x):
    state = torch.get_rng_state()
    first = torch.rand(3)
    torch.set_rng_state(state)
    return first - torch.rand(3) + x


def forked(x):
    with torch.random.fork_rng():
        first = torch.rand(3)
    return first - torch.rand(3) + x


def of_a_generator(x):
    state = GENERATOR.get_state()
    first = torch.rand(3, generator=GENERATOR)
    GENERATOR.set_state(state)
    return first - torch.rand(3, generator=GENERATOR) + x


def in_a_helper(x):
    def seed():
        GENERATOR.manual_seed(3)

    seed()
    return torch.rand(3, generator=GENERATOR) + x


def argument(x, generator=None):
    return x + generator.initial_seed()


REFUSED = {
    "saved and restored": saved_and_restored,
    "forked": forked,
    "initial seed": lambda x: x + torch.initial_seed() % 7,
    "state as a number": lambda x: x * torch.random.get_rng_state().numel(),
    "random.seed": lambda x: x + torch.random.seed() % 7,
    "random.manual_seed": lambda x: torch.random.manual_seed(3) and x * 2,
    "cuda": lambda x: torch.cuda.manual_seed_all(3) or x * 2,
    "of a generator": of_a_generator,
    "in a helper": in_a_helper,
    "default generator": lambda x: torch.default_generator.manual_seed(3) and torch.rand(3) + x,
    "seed": lambda x: GENERATOR.seed() % 7 + x,
    "seed of a generator": lambda x: GENERATOR.initial_seed() + x,
    "clone": lambda x: torch.rand(3, generator=GENERATOR.clone_state()) + x,
    "of an object": lambda x: x + Holder.generator.initial_seed(),
}


@BACKENDS
@pytest.mark.parametrize("case", REFUSED)
def test_states_are_refused(case, backend):
    called = funcaot.compile(REFUSED[case], backend=backend)
    for _ in range(2):
        with pytest.raises(UnsupportedError, match="outside"):
            called(torch.ones(3))
    GENERATOR.manual_seed(0)
    torch.manual_seed(0)


def test_a_generator_that_is_passed_is_one_at_hand():
    with pytest.raises(UnsupportedError, match="initial_seed"):
        funcaot.compile(argument, backend="eager")(torch.ones(3), generator=torch.Generator())


def checkpointed(x):
    def region(x):
        return torch.nn.functional.dropout(x) * x

    return torch.utils.checkpoint.checkpoint(
        region, x, use_reentrant=False, preserve_rng_state=True
    )


DRAWN = {
    "dropout": lambda x: torch.nn.functional.dropout(x),
    "checkpoint": checkpointed,
    "generator": lambda x: torch.rand(3, generator=GENERATOR) + x,
    "generator of an object": lambda x: torch.rand(3, generator=Holder.generator) + x,
    "in place": lambda x: torch.empty(3).normal_(generator=GENERATOR) + x,
    "default generator": lambda x: torch.rand(3, generator=torch.default_generator) + x,
}


@BACKENDS
@pytest.mark.parametrize("case", DRAWN)
def test_draws_go_on_as_in_eager(case, backend):
    found = []
    for called in (DRAWN[case], funcaot.compile(DRAWN[case], backend=backend)):
        for generator in (GENERATOR, Holder.generator, torch.default_generator):
            generator.manual_seed(5)
        values = [called(torch.ones(3).requires_grad_()) for _ in range(3)]
        found.append([value.tolist() for value in values] + [torch.rand(1).item()])
    assert found[0] == found[1]


def test_a_seed_of_the_users_is_none_of_torch():
    class Game:
        def seed(self):
            return 3

    game = Game()
    called = funcaot.compile(lambda x: x * game.seed(), backend="eager")
    assert called(torch.ones(3)).tolist() == [3.0] * 3


def _noisy(draw):
    """A Function whose backward draws numbers from generators."""

    class Noisy(torch.autograd.Function):
        @staticmethod
        def forward(ctx, x):
            return x * 2

        @staticmethod
        def backward(ctx, gradient):
            return gradient * draw(gradient.shape)

    return Noisy


def _seeding(shape):
    torch.manual_seed(4)
    return torch.rand(shape)


def _restoring(shape):
    with torch.random.fork_rng():
        return torch.rand(shape) + torch.initial_seed() % 7


SEEDED = {
    "never seeded": lambda shape: torch.rand(shape, generator=torch.Generator()),
    "only drawn from": lambda shape: torch.rand(shape, generator=GENERATOR),
    "made there": lambda shape: torch.rand(shape, generator=torch.Generator().manual_seed(3)),
    "at hand": lambda shape: torch.rand(shape, generator=GENERATOR.manual_seed(3)),
    "everybody's": _seeding,
    "forked": _restoring,
}


@BACKENDS
@pytest.mark.parametrize("case", SEEDED)
def test_a_backward_that_seeds(case, backend):
    """It runs in each call: once, in the trace, isn't often enough."""
    function = _noisy(SEEDED[case])
    compiled = funcaot.compile(lambda x: function.apply(x) + 1, backend=backend)
    for step in range(3):
        found = []
        for called in (function.apply, compiled):
            torch.manual_seed(step)
            GENERATOR.manual_seed(step)
            x = torch.ones(3 + step, requires_grad=True)
            (gradient,) = torch.autograd.grad(called(x).sum(), x)
            found.append((gradient, torch.rand(2), GENERATOR.get_state()))
        torch.testing.assert_close(found[1], found[0], rtol=0, atol=0)
