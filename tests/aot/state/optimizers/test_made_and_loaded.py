"""Optimizers that a compiled function makes itself, or whose state it loads: as in eager."""

import copy

import pytest
import torch
from torch import nn
from torch.optim.optimizer import register_optimizer_step_pre_hook
from torch.testing import assert_close

import funcaot


class World:
    def __init__(self, kind=torch.optim.SGD, **options):
        torch.manual_seed(0)
        self.net = nn.Linear(3, 2)
        self.optimizer = kind(self.net.parameters(), lr=0.1, **options)
        self.kept = None
        self.rate = 0.1

    def trained(self, x, optimizer):
        optimizer.zero_grad()
        loss = self.net(x).square().sum()
        loss.backward()
        optimizer.step()
        return loss.detach()

    def step(self, x):
        return self.trained(x, self.optimizer)

    def step_or_go_back(self, x):
        """Goes back to what is kept where there is something."""
        if self.kept is not None:
            self.optimizer.load_state_dict(self.kept)
        return self.step(x)

    def always_go_back(self, x):
        loss = self.step(x)
        self.optimizer.load_state_dict(self.optimizer.state_dict())
        return loss

    def with_a_new_one(self, x):
        return self.trained(x, torch.optim.SGD(self.net.parameters(), lr=self.rate))

    def seen(self):
        states = [self.optimizer.state.get(p, {}) for p in self.net.parameters()]
        return [*self.net.parameters(), *(p.grad for p in self.net.parameters()), *states]


def compare(worlds, steps):
    eager, compiled = steps
    x = torch.randn(4, 3)
    assert_close(compiled(x), eager(x))
    for one, other in zip(worlds[0].seen(), worlds[1].seen(), strict=True):
        assert_close(other, one)


@pytest.mark.parametrize("kind", [torch.optim.Adam, torch.optim.SGD])
def test_a_call_that_loads_a_state_runs_as_it_is(kind):
    worlds = [World(kind), World(kind)]
    compiled = funcaot.compile(worlds[1].step_or_go_back, backend="eager")
    steps = worlds[0].step_or_go_back, compiled
    for _ in range(3):
        compare(worlds, steps)
    for world in worlds:
        world.kept = copy.deepcopy(world.optimizer.state_dict())
    for _ in range(2):
        compare(worlds, steps)
    for world in worlds:
        world.kept = None
    known = funcaot.report(compiled).cache_misses
    for _ in range(3):
        compare(worlds, steps)
    # What it was compiled for before serves again, or one program more.
    assert funcaot.report(compiled).cache_misses <= known + 1


def test_one_that_loads_in_every_call_is_told_so():
    world = World(momentum=0.9)
    compiled = funcaot.compile(world.always_go_back, backend="eager")
    for _ in range(8):
        compiled(torch.randn(4, 3))
    with pytest.raises(funcaot.errors.UnsupportedError, match="load_state_dict does, in every"):
        compiled(torch.randn(4, 3))


def test_an_optimizer_made_in_each_call_takes_no_program_for_each():
    worlds = [World(), World()]
    compiled = funcaot.compile(worlds[1].with_a_new_one, backend="eager")
    steps = worlds[0].with_a_new_one, compiled
    for _ in range(4):
        compare(worlds, steps)
    assert funcaot.report(compiled).cache_misses == 2  # There was no .grad in the first call.
    for rate in (0.05, 0.02):
        for world in worlds:
            world.rate = rate
        compare(worlds, steps)
    assert funcaot.report(compiled).cache_misses == 3

    def halve(optimizer, args, kwargs):
        with torch.no_grad():
            optimizer.param_groups[0]["params"][0].mul_(0.5)

    handle = register_optimizer_step_pre_hook(halve)
    try:
        compare(worlds, steps)
    finally:
        handle.remove()
