"""Hooks that a function registers on what it returns: of each kind of result, and of each use."""

import pytest
import torch

import funcaot
from funcaot.errors import UnsupportedError
from tests.hostile import COMPILER

RESULTS = {
    "new": lambda x: x * 2,
    "the argument": lambda x: x,
    "view": lambda x: x.view(-1),
    "transposed": lambda x: x.t(),
    "row": lambda x: x[0],
    "view of a view": lambda x: x.t()[1:],
    "view of a new one": lambda x: (x * 2).view(-1),
    "as complex": lambda x: torch.view_as_complex(x),
    "written to": lambda x: x.clone().view(-1).mul_(3),
    "in another dtype": lambda x: x.to(torch.float32),
}
HOOKS = {
    "replaces": lambda g: g * 3,
    "bends": lambda g: g / (1 + g.abs()),
    "looks": lambda g: None,
}


def registering(make, *hooks):
    def function(x):
        y = make(x)
        for hook in hooks:
            y.register_hook(hook)
        return y

    return function


def gradients(function, seed, order):
    torch.manual_seed(seed)
    leaf = torch.randn(3, 2, dtype=torch.float64, requires_grad=True)
    y = function(leaf * 1.5)
    loss = torch.view_as_real(y).square().sum() if y.is_complex() else y.square().sum()
    (first,) = torch.autograd.grad(loss, leaf, create_graph=order > 1)
    return first if order == 1 else torch.autograd.grad(first.sin().sum(), leaf)[0]


@pytest.mark.parametrize("hook", HOOKS)
@pytest.mark.parametrize("result", RESULTS)
def test_as_in_eager(result, hook):
    function = registering(RESULTS[result], HOOKS[hook], HOOKS["replaces"])
    compiled = funcaot.compile(function, backend=COMPILER)
    for seed in range(3):
        for order in (1, 2):
            found = gradients(compiled, seed, order)
            torch.testing.assert_close(found, gradients(function, seed, order))


def test_on_the_default_backend():
    function = registering(RESULTS["view of a new one"], HOOKS["bends"])
    compiled = funcaot.compile(function)
    for seed in range(3):
        torch.testing.assert_close(gradients(compiled, seed, 1), gradients(function, seed, 1))


def test_one_that_is_used_for_another_result_too():
    def function(x):
        y = x.view(-1)
        y.register_hook(lambda g: g.clamp(-1, 1))
        return y, y * 2

    compiled = funcaot.compile(function, backend=COMPILER)
    with pytest.raises(UnsupportedError, match="registers a hook on a result that is a view"):
        compiled(torch.ones(2, 2, requires_grad=True))
