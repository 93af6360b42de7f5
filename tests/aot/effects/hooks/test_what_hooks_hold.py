"""Hooks of tensors in the middle, which compute with what the function made."""

import functools

import pytest
import torch

import funcaot
from funcaot.errors import UnsupportedError
from tests.hostile import COMPILER


def masking(mask):
    """As optimizers that are differentiated have: the hook is there at the next order too."""

    def hook(g):
        g = torch.where(mask > 0.5, g, g * mask)
        if g.requires_grad:
            g.register_hook(masking(mask))
        return g

    return hook


class Holder:
    def __init__(self, tensor):
        self.tensor = tensor

    def scale(self, g):
        return g * self.tensor

    def __call__(self, g):
        return g + self.tensor * g.square()


def late(tensor):
    """What it closes over is assigned afterwards."""
    held = []

    def hook(g):
        return g * held[0]

    held.append(tensor)
    return hook


HOOKS = {
    "closure": lambda tensor: lambda g: g * tensor,
    "default": lambda tensor: lambda g, other=tensor: g * other,
    "partial": lambda tensor: functools.partial(torch.mul, tensor),
    "method": lambda tensor: Holder(tensor).scale,
    "object": Holder,
    "dictionary": lambda tensor: functools.partial(lambda held, g: g * held["it"], {"it": tensor}),
    "registers again": masking,
    "late": late,
}
MIDDLE = {
    # Autograd keeps none of these for the backward of what is returned.
    "new": lambda x, w, s: s.exp(),
    "detached": lambda x, w, s: s.detach().exp(),
    "written to": lambda x, w, s: s.detach().clone().mul_(w.detach()).add_(1),
    "view": lambda x, w, s: (s.exp() * w).view(2, 3)[:, :1],
    "itself": lambda x, w, s: s,
    "argument": lambda x, w, s: x,
}


def gradients(function, seed, order):
    torch.manual_seed(seed)
    x, w = (torch.randn(2, 3, dtype=torch.float64, requires_grad=True) for _ in range(2))
    loss = function(x, w)
    found = torch.autograd.grad(loss.sum(), (x, w), create_graph=order > 1)
    if order == 1:
        return found
    penalty = sum((g.sin() * (x + w)).sum() for g in found)
    return torch.autograd.grad(penalty, (x, w))


def held_by(make, hook):
    def function(x, w):
        s = x + w
        if s.requires_grad:
            s.register_hook(hook(make(x, w, s)))
        return s * 2

    return function


CASES = [("registers again", middle) for middle in MIDDLE]
CASES += [(hook, "new") for hook in HOOKS if hook != "registers again"]


@pytest.mark.parametrize(("hook", "middle"), CASES)
def test_as_in_eager(hook, middle):
    function = held_by(MIDDLE[middle], HOOKS[hook])
    compiled = funcaot.compile(function, backend=COMPILER)
    for order in (1, 2, 1):
        found, expected = (gradients(f, order, order) for f in (compiled, function))
        torch.testing.assert_close(found, expected)


def test_on_the_default_backend():
    function = held_by(MIDDLE["new"], masking)
    compiled = funcaot.compile(function)
    for seed in range(2):
        torch.testing.assert_close(gradients(compiled, seed, 1), gradients(function, seed, 1))


def test_a_hook_of_a_node_is_refused():
    """What it closes over can't be seen."""

    def function(x, w):
        s = x + w
        made = s.detach().exp()
        s.grad_fn.register_hook(lambda found, _: tuple(g * made for g in found))
        return s * 2

    compiled = funcaot.compile(function, backend="eager")
    with pytest.raises(UnsupportedError, match="hook of an autograd node"):
        gradients(compiled, 0, 1)


def test_a_value_that_a_hook_reads():
    """It is looked at in each backward."""

    def function(x):
        limit, y = x.detach().square().mean(), x + 1
        y.register_hook(lambda g: g * (2.0 if limit.item() > 1 else 0.5))
        return y * 3

    compiled = funcaot.compile(function, backend="eager")
    for value in (0.1, 5.0, 0.2, 7.0):
        found = []
        for each in (function, compiled):
            x = torch.full((3,), value, requires_grad=True)
            found += torch.autograd.grad(each(x).sum(), x)
        torch.testing.assert_close(*found)
