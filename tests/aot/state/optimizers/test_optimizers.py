"""Whole training steps with torch's optimizers: all that a step changes is as in eager."""

import pytest
import torch
from torch import nn
from torch.optim import lr_scheduler as schedulers
from torch.testing import assert_close

import funcaot

OPTIMIZERS = {
    "momentum": (torch.optim.SGD, {"momentum": 0.9}),
    "dampening": (torch.optim.SGD, {"momentum": 0.9, "dampening": 0.5, "maximize": True}),
    "nesterov": (torch.optim.SGD, {"momentum": 0.9, "nesterov": True, "weight_decay": 0.01}),
    "Adam": (torch.optim.Adam, {"weight_decay": 0.01}),
    "AdamW with amsgrad": (torch.optim.AdamW, {"amsgrad": True}),
    "RMSprop": (torch.optim.RMSprop, {}),
    "centered RMSprop": (torch.optim.RMSprop, {"centered": True, "momentum": 0.9}),
    "Adagrad": (torch.optim.Adagrad, {"lr_decay": 0.1}),
}


def make_step(model, optimizer):
    def step(x, y):
        optimizer.zero_grad()
        loss = nn.functional.mse_loss(model(x), y)
        loss.backward()
        optimizer.step()
        return loss.detach()

    return step


def trained(name, wrap, *, foreach, steps=3):
    """For each step all that can be seen of parameters, gradients and state."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(3, 4), nn.Tanh(), nn.Linear(4, 1)).double()
    kind, options = OPTIMIZERS[name]
    optimizer = kind(model.parameters(), lr=0.05, foreach=foreach, **options)
    step = wrap(make_step(model, optimizer))
    found = []
    for _ in range(steps):
        x = torch.randn(5, 3, dtype=torch.float64)
        seen = [step(x, x.sum(dim=1, keepdim=True))]
        versions = []
        for parameter in model.parameters():
            seen += [parameter.detach().clone(), parameter.grad.clone()]
            versions += [parameter._version, parameter.grad._version]
            state = optimizer.state[parameter]
            versions.append(sorted(state))
            for key, value in sorted(state.items()):
                if isinstance(value, torch.Tensor):
                    seen.append(value.clone())
                    versions.append((key, value._version, value.requires_grad))
                else:
                    versions.append((key, value))
        found.append((seen, versions))
    return found


@pytest.mark.parametrize("foreach", [False, True], ids=["single tensor", "foreach"])
@pytest.mark.parametrize("name", OPTIMIZERS)
def test_a_step_changes_what_it_changes_in_eager(name, foreach):
    expected = trained(name, lambda step: step, foreach=foreach)
    actual = trained(name, lambda step: funcaot.compile(step, backend="eager"), foreach=foreach)
    for (ours, our_versions), (theirs, versions) in zip(actual, expected, strict=True):
        assert_close(ours, theirs, rtol=1e-10, atol=1e-12)
        assert our_versions == versions


SCHEDULERS = {
    "cosine": lambda optimizer: schedulers.CosineAnnealingLR(optimizer, 10),
    "lambda": lambda optimizer: schedulers.LambdaLR(optimizer, lambda epoch: 0.9**epoch),
    "one cycle": lambda optimizer: schedulers.OneCycleLR(optimizer, max_lr=0.1, total_steps=20),
    "warm up": lambda optimizer: schedulers.LinearLR(optimizer, total_iters=4),
}


@pytest.mark.parametrize("schedule", SCHEDULERS)
@pytest.mark.parametrize("kind", [torch.optim.SGD, torch.optim.AdamW, torch.optim.NAdam])
def test_a_schedule_takes_three_programs(kind, schedule):
    """One for the state that the first step makes, one for the second rate, one for all others.

    A cycle changes the momentum too, and betas, which are a tuple.
    """
    options = {"momentum": 0.9} if kind is torch.optim.SGD else {}
    found = []
    for compiles in (False, True):
        torch.manual_seed(0)
        model = nn.Linear(3, 1, dtype=torch.float64)
        optimizer = kind(model.parameters(), lr=0.05, **options)
        scheduler, step = SCHEDULERS[schedule](optimizer), make_step(model, optimizer)
        called = funcaot.compile(step, backend="eager") if compiles else step
        for _ in range(7):
            x = torch.randn(5, 3, dtype=torch.float64)
            found.append((called(x, x.sum(dim=1, keepdim=True)), model.weight.detach().clone()))
            scheduler.step()
    assert_close(found[7:], found[:7], rtol=1e-10, atol=1e-12)
    assert funcaot.report(called).cache_misses <= 3
