"""Whole training steps by optimizers of others, which count in numbers: few programs for all."""

import pytest
import torch
import training
from torch import nn

import funcaot

pytestmark = pytest.mark.filterwarnings("ignore")


def check(make, steps=10):
    """Train two copies, one by a compiled step, and compare losses and parameters."""
    models, functions = [], []
    for _ in range(2):
        torch.manual_seed(0)
        model = nn.Sequential(nn.Linear(3, 8), nn.Tanh(), nn.Linear(8, 1))
        optimizer = make(model.parameters())
        if hasattr(optimizer, "train"):
            optimizer.train()

        def step(x, y, model=model, optimizer=optimizer):
            optimizer.zero_grad()
            loss = (model(x) - y).square().mean()
            loss.backward()
            optimizer.step()
            return loss.detach()

        models.append(model)
        functions.append(step)
    compiled = funcaot.compile(functions[1], backend=training.BACKEND)
    for number in range(steps):
        torch.manual_seed(number)
        given = torch.randn(6, 3), torch.randn(6, 1)
        training.close(compiled(*given), functions[0](*given), 1e-4)
        for first, second in zip(*(model.parameters() for model in models), strict=True):
            training.close(second.detach(), first.detach(), 1e-4)
    made = funcaot.report(compiled).cache_misses
    assert made <= 5
    training.measured.append((made, None))


@pytest.mark.parametrize("name", ["AdamWScheduleFree", "SGDScheduleFree", "RAdamScheduleFree"])
def test_schedulefree(name):
    import schedulefree

    check(lambda parameters: getattr(schedulefree, name)(parameters, lr=1e-2))


@pytest.mark.parametrize("name", ["AdaBelief", "Adan", "Lamb", "Lion", "StableAdamW"])
def test_pytorch_optimizer(name):
    import pytorch_optimizer

    check(lambda parameters: getattr(pytorch_optimizer, name)(parameters, lr=1e-2))
