"""The state of an optimizer, read and changed by code that isn't its step."""

from collections import defaultdict

import pytest
import torch
from torch import nn

import funcaot


def _each(optimizer):
    return [parameter for group in optimizer.param_groups for parameter in group["params"]]


def _momentum(optimizer):
    return [optimizer.state[p].get("momentum_buffer") for p in _each(optimizer)]


def read(optimizer):
    return [torch.zeros(()) if value is None else value.norm() for value in _momentum(optimizer)]


def write(optimizer):
    for value in _momentum(optimizer):
        if value is not None:
            value.mul_(0.5)


def assign(optimizer):
    for parameter, value in zip(_each(optimizer), _momentum(optimizer), strict=True):
        if value is not None:
            optimizer.state[parameter]["momentum_buffer"] = value * 0.5


def add(optimizer):
    for parameter in _each(optimizer):
        optimizer.state[parameter]["kept"] = parameter.detach() * 2


def average(optimizer):
    for parameter in _each(optimizer):
        state, value = optimizer.state[parameter], parameter.detach()
        state["kept"] = state["kept"] * 0.9 + value if "kept" in state else value.clone()


def swap(optimizer):
    for parameter, value in zip(_each(optimizer), _momentum(optimizer), strict=True):
        optimizer.state[parameter] |= {"momentum_buffer": parameter.detach() * 0.1, "old": value}


def count(optimizer):
    for parameter in _each(optimizer):
        state = optimizer.state[parameter]
        state["calls"] = state.get("calls", 0) + 1
    return torch.ones(()) * len(optimizer.state)


def forget(optimizer):
    optimizer.state = defaultdict(dict)


def _world(act, where):
    torch.manual_seed(0)
    net = nn.Linear(3, 2)
    optimizer = torch.optim.SGD(net.parameters(), 0.1, momentum=0.9)
    if where == "alone":
        net(torch.ones(1, 3)).sum().backward()
        optimizer.step()

    def step(x):
        optimizer.zero_grad()
        loss = net(x).pow(2).mean()
        loss.backward()
        told = [act(optimizer)] if where != "after" else []
        if where != "alone":
            optimizer.step()
        told += [act(optimizer)] if where == "after" else []
        return loss.detach(), told

    return step, optimizer


def _seen(optimizer):
    return [(p.detach().clone(), {**optimizer.state[p]}) for p in _each(optimizer)]


def _check(act, where):
    (eager, first), (function, second) = _world(act, where), _world(act, where)
    compiled = funcaot.compile(function, backend="eager")
    for number in range(4):
        x = torch.randn(3, 3, generator=torch.Generator().manual_seed(number))
        if number == 3:  # Somebody else changes it, too.
            for optimizer in (first, second):
                optimizer.state.pop(_each(optimizer)[0], None)
        torch.testing.assert_close(compiled(x), eager(x))
        torch.testing.assert_close(_seen(second), _seen(first))
        for _, state in _seen(second):
            assert all(type(value) in (torch.Tensor, int, type(None)) for value in state.values())
    assert funcaot.report(compiled).cache_misses <= 4


ACTS = [read, write, assign, add, average, swap, count, forget]


def test_code_other_than_a_step_uses_the_state():
    _check(average, "alone")


@pytest.mark.long
@pytest.mark.parametrize("where", ["before", "after", "alone"])
@pytest.mark.parametrize("act", ACTS)
def test_whatever_is_done_to_the_state(act, where):
    _check(act, where)


class TwoPhases(torch.optim.Optimizer):
    """Climbs first, keeps where it was, and descends from there, as SAM does."""

    def __init__(self, parameters):
        super().__init__(parameters, {"reach": 0.05})
        self.base = torch.optim.SGD(self.param_groups[0]["params"], 0.05, momentum=0.9)

    @torch.no_grad()
    def climb(self):
        for parameter in _each(self):
            self.state[parameter]["old"] = parameter.data.clone()
            parameter.add_(parameter.grad * self.param_groups[0]["reach"])

    @torch.no_grad()
    def descend(self):
        for parameter in _each(self):
            parameter.data = self.state[parameter]["old"]
        self.base.step()


def test_an_optimizer_that_steps_in_two_methods():
    worlds = []
    for compiles in (False, True):
        torch.manual_seed(0)
        net = nn.Linear(3, 2)
        optimizer = TwoPhases(net.parameters())

        def step(x, net=net, optimizer=optimizer):
            for act in (optimizer.climb, optimizer.descend):
                optimizer.zero_grad()
                net(x).pow(2).mean().backward()
                act()

        worlds.append((funcaot.compile(step, backend="eager") if compiles else step, optimizer))
    for _ in range(3):
        x = torch.randn(4, 3)
        for step, _ in worlds:
            step(x)
        torch.testing.assert_close(_seen(worlds[1][1]), _seen(worlds[0][1]))
    assert type(worlds[1][1].state[_each(worlds[1][1])[0]]["old"]) is torch.Tensor
