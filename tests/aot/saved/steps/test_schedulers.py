"""Whole training steps that call a scheduler, from a file that was written at an earlier count."""

import pytest
import torch
from torch import nn
from torch.optim import lr_scheduler

import funcaot
from tests.aot.saved.reloading import is_loaded, misses

SCHEDULERS = {
    "cosine": lambda o: lr_scheduler.CosineAnnealingLR(o, 20),
    "exponential": lambda o: lr_scheduler.ExponentialLR(o, 0.9),
    "warm-up": lambda o: lr_scheduler.LambdaLR(o, lambda count: min(1.0, (count + 1) / 5)),
    "one cycle": lambda o: lr_scheduler.OneCycleLR(o, 0.1, total_steps=50),
    "restarts": lambda o: lr_scheduler.CosineAnnealingWarmRestarts(o, 4),
    "linear and cosine": lambda o: lr_scheduler.SequentialLR(
        o,
        [
            lr_scheduler.LinearLR(o, 0.1, total_iters=3),
            lr_scheduler.CosineAnnealingLR(o, 20),
        ],
        [3],
    ),
}


def trained(make, wrap, steps):
    torch.manual_seed(0)
    network = nn.Sequential(nn.Linear(3, 4), nn.Tanh(), nn.Linear(4, 1)).double()
    optimizer = torch.optim.AdamW(network.parameters(), lr=0.01)
    scheduler = make(optimizer)

    def step(x):
        optimizer.zero_grad()
        loss = network(x).square().mean()
        loss.backward()
        optimizer.step()
        scheduler.step()
        return loss.detach()

    step = wrap(step)
    rates = []
    losses = []
    for _ in range(steps):
        losses.append(step(torch.randn(5, 3, dtype=torch.float64)))
        rates.append((optimizer.param_groups[0]["lr"], scheduler.get_last_lr()))
    return (losses, rates, [*network.parameters()]), step, scheduler


@pytest.mark.filterwarnings("ignore:The epoch parameter")
@pytest.mark.parametrize(
    "name",
    [
        name if name == "cosine" else pytest.param(name, marks=pytest.mark.slow)
        for name in SCHEDULERS
    ],
)
def test_later_counts_of_a_scheduler(name, tmp_path):
    path, make = tmp_path / "programs", SCHEDULERS[name]
    *_, first, _kept = trained(make, lambda step: funcaot.compile(step, backend="eager"), 8)
    saved = first.save(path)
    assert saved.programs and not saved.left_out, saved
    ours, loaded, _ = trained(
        make, lambda step: funcaot.compile(step, backend="eager", artifacts=path), 12
    )
    theirs, *_ = trained(make, lambda step: step, 12)
    torch.testing.assert_close(ours, theirs)
    # Eager makes the state of the optimizer.
    assert is_loaded(loaded) and misses(loaded) == 1
    assert funcaot.report(loaded).graphs_compiled == 0


@pytest.mark.slow
def test_another_schedule_is_a_miss(tmp_path):
    path = tmp_path / "programs"
    make = SCHEDULERS["exponential"]
    *_, first, _kept = trained(make, lambda step: funcaot.compile(step, backend="eager"), 5)
    first.save(path)

    def other(optimizer):
        scheduler = lr_scheduler.ExponentialLR(optimizer, 0.9)
        scheduler.last_epoch = 3.0  # a number of another kind
        return scheduler

    def linear(optimizer):
        return lr_scheduler.LinearLR(optimizer, 0.5, total_iters=3)

    def faster(optimizer):
        return lr_scheduler.ExponentialLR(optimizer, 0.5)

    for another in (other, linear, faster):
        ours, loaded, _ = trained(
            another, lambda step: funcaot.compile(step, backend="eager", artifacts=path), 5
        )
        theirs, *_ = trained(another, lambda step: step, 5)
        torch.testing.assert_close(ours, theirs)
        assert misses(loaded) > 1
