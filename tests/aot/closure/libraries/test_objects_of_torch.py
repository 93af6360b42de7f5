"""Objects of torch's own plain classes: what their code reads is found, another may stand there."""

import pytest
import torch
from torch.distributions import (
    Categorical,
    Independent,
    MultivariateNormal,
    Normal,
    TransformedDistribution,
    kl_divergence,
)
from torch.distributions.transforms import AffineTransform, ExpTransform
from torch.testing import assert_close
from torch.testing._internal.opinfo.core import SampleInput
from torch.utils.data import ConcatDataset, DataLoader, StackDataset, Subset, TensorDataset

import funcaot

DATA = TensorDataset(torch.arange(6.0).view(3, 2), torch.arange(3))
LOADER = DataLoader(DATA, batch_size=2)


def dataset():
    return TensorDataset(torch.randn(3, 2), torch.arange(3))


def stacked():
    return StackDataset(torch.randn(3), torch.randn(3))


def normal():
    return Normal(torch.randn(3), torch.rand(3) + 0.1)


def transformed():
    changes = [ExpTransform(), AffineTransform(torch.rand(3), torch.rand(3) + 0.1)]
    return TransformedDistribution(normal(), changes)


def sample():
    return SampleInput(torch.randn(3), args=(torch.randn(3),))


X = torch.rand(3) + 2
CASES = {
    "an item of a dataset": (lambda data: data[1][0] * data[2][1], dataset),
    "all items": (lambda data: sum(x.sum() * y for x, y in data), dataset),
    "a subset": (lambda data: data[0][0] * 2, lambda: Subset(dataset(), [2, 0])),
    "two datasets": (lambda data: data[4][0] * 2, lambda: ConcatDataset([dataset(), dataset()])),
    "stacked": (lambda data: data[1][1] * 2, stacked),
    "reached": (lambda x: DATA[1][0] * x, lambda: torch.randn(2)),
    "slots": (lambda s: s.input * s.args[0], sample),
    "normal": (lambda d: d.log_prob(X), normal),
    "independent": (lambda d: d.entropy(), lambda: Independent(normal(), 1)),
    "categorical": (
        lambda d: d.log_prob(torch.tensor(1)),
        lambda: Categorical(logits=torch.randn(3)),
    ),
    "matrix": (
        lambda d: d.log_prob(X),
        lambda: MultivariateNormal(torch.randn(3), torch.eye(3) * torch.rand(())),
    ),
    "transformed": (lambda d: d.log_prob(X + 2), transformed),
    "two": (lambda d: kl_divergence(*d), lambda: (normal(), normal())),
}


@pytest.mark.parametrize("name", CASES)
def test_what_they_hold_is_found_and_is_of_each_call(name):
    function, make = CASES[name]
    compiled = funcaot.compile(function, backend="eager")
    for _ in range(3):
        given = make()
        ours = compiled(given)
        # After it: what the compiled function left in the object is in use here.
        assert_close(ours, function(given), rtol=0, atol=0)
    assert funcaot.report(compiled).cache_misses == 1


def test_a_loader_is_gone_through():
    # It draws a seed for each pass, a whole number, so each call is a program.
    compiled = funcaot.compile(lambda x: sum((b @ x).sum() for b, _ in LOADER), backend="eager")
    for _ in range(2):
        x = torch.randn(2)
        assert_close(compiled(x), (DATA.tensors[0] @ x).sum())


def test_what_a_dataset_holds_may_be_another():
    data = TensorDataset(torch.ones(3, 2))
    compiled = funcaot.compile(lambda x: data[0][0] * x, backend="eager")
    for _ in range(3):
        data.tensors = (torch.randn(3, 2),)
        assert_close(compiled(torch.ones(2)), data.tensors[0][0])


def test_gradients_reach_the_parameters_of_a_distribution():
    def step(distribution, action):
        return -distribution.log_prob(action).sum()

    compiled = funcaot.compile(step, backend="eager")
    layer, action = torch.nn.Linear(2, 2), torch.randn(2)
    for _ in range(3):
        found = []
        for way in (compiled, step):
            layer.zero_grad()
            mean, scale = layer(torch.ones(2)).chunk(2)
            way(Normal(mean, scale.exp()), action).backward()
            found.append([p.grad.clone() for p in layer.parameters()])
        assert_close(found[0], found[1], rtol=0, atol=0)
    assert funcaot.report(compiled).cache_misses == 1
