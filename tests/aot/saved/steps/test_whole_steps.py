"""Whole training steps from a file: ``.grad`` and optimizers are written inside the graph."""

import copy
import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from torch import nn

import funcaot
from tests.aot.saved.reloading import is_loaded, misses

BACKENDS = ["eager", "inductor"]
OPTIMIZERS = {
    "SGD": lambda p: torch.optim.SGD(p, lr=0.1),
    "SGD with momentum": lambda p: torch.optim.SGD(p, lr=0.1, momentum=0.9, nesterov=True),
    "Adam": lambda p: torch.optim.Adam(p, lr=0.01),
    "AdamW with amsgrad": lambda p: torch.optim.AdamW(p, lr=0.01, amsgrad=True),
    "a learning rate in a tensor": lambda p: torch.optim.Adam(
        p, lr=torch.tensor(0.01), capturable=False, foreach=False
    ),
    "groups": lambda p: torch.optim.Adam([{"params": p[:2]}, {"params": p[2:], "lr": 0.03}]),
    "RMSprop": lambda p: torch.optim.RMSprop(p, lr=0.01),
    "Adagrad": lambda p: torch.optim.Adagrad(p, lr=0.1),
}


class Training:
    """A network with an optimizer, and a step on both."""

    def __init__(self, make=OPTIMIZERS["Adam"], *, layers=None):
        torch.manual_seed(0)
        self.network = layers or nn.Sequential(nn.Linear(3, 4), nn.Tanh(), nn.Linear(4, 1))
        self.network.double()
        self.optimizer = make(list(self.network.parameters()))

    def step(self, x, t):
        self.optimizer.zero_grad()
        loss = (self.network(x) - t).square().mean()
        loss.backward()
        self.optimizer.step()
        return loss.detach()

    def parameters(self):
        return list(self.network.parameters())

    def left(self):
        parameters = self.parameters()
        state = self.optimizer.state
        return (
            [parameter.detach().clone() for parameter in parameters],
            [parameter.grad for parameter in parameters],
            [dict(state[parameter]) for parameter in parameters if parameter in state],
        )


def batch(seed):
    torch.manual_seed(seed)
    return torch.randn(5, 3).double(), torch.randn(5, 1).double()


def trained(training, target, steps=4, first=0):
    losses = [target(*batch(seed)) for seed in range(first, first + steps)]
    return losses, training.left()


def save(path, make, backend="eager", **options):
    training = Training(make)
    compiled = funcaot.compile(training.step, backend=backend)
    trained(training, compiled)
    saved = compiled.save(path)
    assert not saved.left_out, saved
    assert saved.programs
    return training


@pytest.mark.parametrize("optimizer", OPTIMIZERS)
@pytest.mark.parametrize("backend", ["eager", pytest.param("inductor", marks=pytest.mark.slow)])
def test_steps_of_a_file(optimizer, backend, tmp_path):
    make = OPTIMIZERS[optimizer]
    save(tmp_path / "programs", make, backend)
    ours, eager = Training(make), Training(make)
    compiled = funcaot.compile(ours.step, backend=backend, artifacts=tmp_path / "programs")
    torch.testing.assert_close(trained(ours, compiled), trained(eager, eager.step))
    report = funcaot.report(compiled)
    assert is_loaded(compiled)
    # Eager makes the state of an optimizer, in the first step.
    has_state = bool(eager.optimizer.state)
    assert report.cache_misses == (1 if has_state and optimizer != "Adagrad" else 0)
    assert report.graphs_compiled == 0


def test_an_optimizer_with_state_needs_no_first_step(tmp_path):
    path = tmp_path / "programs"
    before = save(path, OPTIMIZERS["Adam"])
    ours, eager = Training(), Training()
    for each in (ours, eager):
        each.network.load_state_dict(before.network.state_dict())
        for one, other in zip(each.parameters(), before.parameters(), strict=True):
            each.optimizer.state[one] = copy.deepcopy(before.optimizer.state[other])
    compiled = funcaot.compile(ours.step, backend="eager", artifacts=path)
    torch.testing.assert_close(trained(ours, compiled), trained(eager, eager.step))
    # The first call finds no .grad, which the other process never saw with such a state.
    assert misses(compiled) == 1
    reasons = [entry.reason for entry in funcaot.report(compiled).entries if not entry.source]
    assert len(reasons) == 1
    assert "a .grad was there and is None" in reasons[0]


USER = Path(__file__).with_name("whole_step_process.py")


def process(*arguments):
    folder = Path(__file__).parents[4]
    found = subprocess.run(
        [sys.executable, str(USER), *map(str, arguments)],
        cwd=folder,
        env={**os.environ, "PYTHONPATH": str(folder)},
        capture_output=True,
        text=True,
        timeout=240,
        check=False,
    )
    assert found.returncode == 0, found.stderr[-3000:]
    return found.stdout.splitlines()[-1]


@pytest.mark.slow
@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("optimizer", ["SGD", "Adam"])
def test_another_process_compiles_nothing(optimizer, backend, tmp_path):
    path = tmp_path / "programs"
    process(optimizer, backend, path, "saves")
    assert process(optimizer, backend, path, "loads") == "0 misses, 0 graphs, as eager"


def two_optimizers(training, other, x, t):
    for each in (training, other):
        each.optimizer.zero_grad()
    fake = training.network(x)
    (fake - t).square().mean().backward(retain_graph=True)
    (other.network(x) - fake).square().sum().backward()
    other.optimizer.step()
    training.optimizer.step()
    return fake.detach()


def accumulating(training, x, t):
    for part, aim in zip(x.split(3), t.split(3), strict=True):
        (training.network(part) - aim).square().sum().backward()
    nn.utils.clip_grad_norm_(training.network.parameters(), 0.5)
    training.optimizer.step()
    training.optimizer.zero_grad(set_to_none=False)
    return x * 2


def penalized(training, x, t):
    training.optimizer.zero_grad()
    x = x.clone().requires_grad_()
    y = training.network(x)
    (slope,) = torch.autograd.grad(y.sum(), x, create_graph=True)
    loss = (y - t).square().mean() + slope.square().mean()
    loss.backward()
    training.optimizer.step()
    return loss.detach(), slope.detach()


def of_an_argument(x, t):
    w = x.sum(0).requires_grad_()
    loss = ((x * w) - t).square().sum()
    loss.backward()
    return loss.detach(), w.grad * 2


def into_an_argument(x, w):
    (x @ w).square().sum().backward()
    return w.grad.sum()


WAYS = {
    "two optimizers": lambda one, two: lambda x, t: two_optimizers(one, two, x, t),
    "gradients that are added up": lambda one, two: lambda x, t: accumulating(one, x, t),
    "a penalty of a gradient": lambda one, two: lambda x, t: penalized(one, x, t),
    "with grad mode": lambda one, two: torch.enable_grad()(lambda x, t: penalized(one, x, t)),
}


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("make", ["SGD", "Adam"])
@pytest.mark.parametrize("backend", ["eager", pytest.param("inductor", marks=pytest.mark.slow)])
def test_ways_to_write_a_step(way, make, backend, tmp_path):
    def run(compiling, artifacts=None):
        one, two = Training(OPTIMIZERS[make]), Training(OPTIMIZERS[make])
        target = WAYS[way](one, two)
        if compiling:
            target = funcaot.compile(target, backend=backend, artifacts=artifacts)
        found = [target(*batch(seed)) for seed in range(4)]
        return (found, one.left(), two.left()), target, (one, two)

    path = tmp_path / "programs"
    theirs, *_ = run(compiling=False)
    _, first, _kept = run(compiling=True)
    saved = first.save(path)
    ours, loaded, _ = run(compiling=True, artifacts=path)
    torch.testing.assert_close(ours, theirs)
    assert not saved.left_out, saved
    assert misses(loaded) <= 1
    assert funcaot.report(loaded).graphs_compiled == 0


def test_gradients_of_arguments_and_inside(tmp_path):
    def run(target, other):
        torch.manual_seed(0)
        x, t = torch.randn(4, 3), torch.randn(4, 3)
        w = torch.randn(3, requires_grad=True)
        found = []
        for _ in range(3):
            made = target(x, t)
            found += [made, other(x, w), w.grad.clone()]
        return found

    paths = tmp_path / "one", tmp_path / "two"
    functions = of_an_argument, into_an_argument
    firsts = [funcaot.compile(function, backend="eager") for function in functions]
    theirs = run(*firsts)
    for first, path in zip(firsts, paths, strict=True):
        saved = first.save(path)
        assert not saved.left_out, saved
    loaded = [
        funcaot.compile(function, backend="eager", artifacts=path)
        for function, path in zip(functions, paths, strict=True)
    ]
    torch.testing.assert_close(run(*loaded), run(*functions))
    torch.testing.assert_close(theirs, run(*functions))
    assert [misses(each) for each in loaded] == [0, 0]


def test_what_a_file_cannot_hold_is_named(tmp_path):
    training = Training(OPTIMIZERS["SGD"])
    training.network[0].weight.register_hook(lambda grad: grad * 2)
    compiled = funcaot.compile(training.step, backend="eager")
    trained(training, compiled)
    assert "hooks on gradients" in str(compiled.save(tmp_path / "programs"))
