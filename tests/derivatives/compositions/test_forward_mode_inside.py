"""Derivatives, outside, of a compiled function that takes forward mode inside under ``vmap``.

Its formulas make zeros without memory for operands that have no tangent, such as a number that is
divided by, and reverse mode hands these on.
"""

from __future__ import annotations

import pytest
import torch
from torch.func import grad, jacfwd, jvp, vmap

import funcaot

COMPUTED = {
    "divided": lambda x: x * x / 3,
    "power": lambda x: (x**3 / 3).sin(),
    "exponential": lambda x: (x / 2).exp(),
    "multiplied": lambda x: 2 * x.tanh(),
}


def pushed(function):
    def run(x):
        basis = torch.eye(x.numel(), dtype=x.dtype)
        return vmap(lambda tangent: jvp(function, (x,), (tangent,))[1])(basis)

    return run


def twice(function):
    def once(x):
        return grad(lambda x: function(x).sin().sum())(x).sin().sum()

    return grad(once)


@pytest.mark.parametrize("inside", [jacfwd, pushed], ids=["jacfwd", "pushed"])
@pytest.mark.parametrize("name", COMPUTED)
def test_second_derivative(name, inside):
    x = torch.tensor([0.3, 0.9], dtype=torch.float64)
    function = inside(COMPUTED[name])
    compiled = funcaot.compile(function, backend="eager")
    torch.testing.assert_close(twice(compiled)(x), twice(function)(x))
