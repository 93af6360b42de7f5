"""Losses of outputs and of their gradients where somebody waits for each gradient, against eager.

The forward's backward and the backward of its gradients run as one graph there.
"""

import gc

import pytest
import torch
from torch import nn

import funcaot
from funcaot.aot.calls import early
from funcaot.aot.runtime.module import COMPILED
from tests.hostile import COMPILER


class _Energy(nn.Module):
    def __init__(self, results: int = 1):
        super().__init__()
        torch.manual_seed(0)
        self.results = results
        self.layers = nn.Sequential(nn.Linear(3, 8), nn.SiLU(), nn.Linear(8, 5), nn.Tanh())
        self.last = nn.Linear(5, 1)

    def forward(self, x):
        energy = self.last(self.layers(x)).squeeze(1)
        return energy if self.results == 1 else (energy, (energy.unsqueeze(1) * x).sin())


def _forces(model, x):
    energy = model(x)
    (gradient,) = torch.autograd.grad(energy.sum(), x, create_graph=True)
    return energy, gradient


def _loss(model, x):
    energy, gradient = _forces(model, x)
    return energy.square().sum() + gradient.square().sum()


def _both(model, x, found):
    _loss(model, x).backward()


def _alone(model, x, found):
    _forces(model, x)[1].square().sum().backward()


def _two_results(model, x, found):
    energy, other = model(x)
    (gradient,) = torch.autograd.grad(energy.sum() + other.sum(), x, create_graph=True)
    (gradient.square().sum() + other.square().sum()).backward()


def _two_gradients(model, x, found):
    energy = model(x)
    (first,) = torch.autograd.grad(energy.sum(), x, create_graph=True)
    (second,) = torch.autograd.grad(energy.sin().sum(), x, create_graph=True)
    (first.sin().sum() + second.square().sum() + energy.sum()).backward()


def _third_order(model, x, found):
    energy, gradient = _forces(model, x)
    (again,) = torch.autograd.grad(gradient.square().sum(), x, create_graph=True)
    (again.square().sum() + gradient.sin().sum() + energy.sum()).backward()


def _direction(model, x, found):
    """What arrives at the gradients' program needs a gradient too."""
    v = torch.ones(len(x), requires_grad=True)
    energy = model(x)
    (gradient,) = torch.autograd.grad(energy, x, v, create_graph=True)
    (gradient.square().sum() + energy.sum()).backward()
    found.append(v.grad)


def _parameters(model, x, found):
    found += torch.autograd.grad(_loss(model, x), list(model.parameters()))


def _one_parameter(model, x, found):
    _loss(model, x).backward(inputs=[model.last.weight])


def _twice(model, x, found):
    loss = _loss(model, x)
    loss.backward(retain_graph=True)
    loss.backward()
    with pytest.raises(RuntimeError, match="backward through the graph a second time"):
        loss.backward()


def _one_after_another(model, x, found):
    energy, gradient = _forces(model, x)
    energy.square().sum().backward(retain_graph=True)
    gradient.square().sum().backward()


def _freed(model, x, found):
    energy, gradient = _forces(model, x)
    energy.sum().backward()
    with pytest.raises(RuntimeError, match="backward through the graph a second time"):
        gradient.square().sum().backward()
    model.zero_grad()


def _hooks(model, x, found):
    energy, gradient = _forces(model, x)
    gradient.register_hook(lambda tangent: 2 * tangent)
    for each in (energy, x):
        each.register_hook(lambda tangent: found.append(tangent.clone()))
    (energy.square().sum() + gradient.square().sum()).backward()


def _failing_hook(model, x, found):
    """The next backward knows nothing of what was left in the one that failed."""
    energy, gradient = _forces(model, x)
    fails = [True]

    def hook(tangent):
        if fails.pop() if fails else False:
            raise ValueError("a hook fails")

    energy.register_hook(hook)
    loss = energy.square().sum() + gradient.square().sum()
    with pytest.raises(ValueError, match="a hook fails"):
        loss.backward(retain_graph=True)
    loss.backward()


def _a_row_each(model, x, found):
    energy, gradient = _forces(model, x)
    rows = torch.eye(gradient.numel()).view(-1, *gradient.shape)
    found += torch.autograd.grad(gradient, x, rows, is_grads_batched=True, retain_graph=True)
    (energy.sum() + gradient.sum()).backward()


# By name: the loss, and how many of its nodes leave their work to another one.
LOSSES = {
    "both": (_both, 1),
    "gradient alone": (_alone, 1),
    "two results": (_two_results, 1),
    "two gradients": (_two_gradients, 1),
    "third order": (_third_order, 1),
    "direction": (_direction, 0),
    "parameters": (_parameters, 1),
    "one parameter": (_one_parameter, 1),
    "twice": (_twice, 2),
    "one after another": (_one_after_another, 1),
    "freed": (_freed, 1),
    "hooks": (_hooks, 1),
    "failing hook": (_failing_hook, 2),
    "a row each": (_a_row_each, 2),
}
# Each compiles a few graphs more; all run in the slow group.
_FAST = ("both",)


def _handing_over(module, backend):
    model = funcaot.compile(module, backend=backend)
    getattr(model, COMPILED).settings.handed_over.limits = (100,)
    return model


def _found(loss, results, backend=None):
    module = _Energy(results)
    model = module if backend is None else _handing_over(module, backend)
    found = []
    for step in range(3):
        x = torch.randn(4, 3, generator=torch.Generator().manual_seed(step)).requires_grad_()
        model.zero_grad()
        own: list[torch.Tensor] = []
        loss(model, x, own)
        found.append([own, x.grad, [parameter.grad for parameter in module.parameters()]])
    return found


@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=[pytest.mark.slow] * (name not in _FAST)) for name in LOSSES]
)
def test_as_in_eager(name, monkeypatch):
    left, leaves = [], early.Early._leaves

    def noted(self, *given):
        left.append(leaves(self, *given))
        return left[-1]

    monkeypatch.setattr(early.Early, "_leaves", noted)
    loss, nodes = LOSSES[name]
    results = 2 if loss is _two_results else 1
    expected, found = _found(loss, results), _found(loss, results, COMPILER)
    torch.testing.assert_close(found, expected, rtol=1e-4, atol=1e-5)
    assert sum(left) == 3 * nodes


@pytest.mark.slow
def test_strides_are_eagers():
    """What the two backwards gave was added in another order than in eager."""
    strides = [
        [[grad.stride() for grad in grads] for _, _, grads in _found(_both, 1, backend)]
        for backend in (None, "eager")
    ]
    assert strides[0] == strides[1]


@pytest.mark.slow
def test_an_error_leaves_nothing_behind():
    model = _handing_over(_Energy(), "eager")
    counts = []
    for _ in range(3):
        _failing_hook(model, torch.ones(4, 3, requires_grad=True), [])
        gc.collect()
        counts.append(sum(type(each).__name__ == "Left" for each in gc.get_objects()))
    assert counts == [0, 0, 0]


def test_the_report_names_its_graphs():
    model = _handing_over(_Energy(), "eager")
    _both(model, torch.ones(4, 3, requires_grad=True), [])
    text = str(funcaot.report(model))
    assert "_Energy_backward_again, part 1 of" in text
