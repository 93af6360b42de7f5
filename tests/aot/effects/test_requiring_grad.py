"""Sequences of calls that change whether an input requires grad, and writes between them."""

import itertools

import pytest
import torch

import funcaot
from funcaot.errors import UnsupportedError

CALLS = {
    "add": lambda x: x.add_(1),
    "times": lambda x: x.mul_(x),
    "detach": lambda x: x.detach_(),
    "require": lambda x: x.requires_grad_(),
    "release": lambda x: x.requires_grad_(False),
    "unsqueeze": lambda x: x.unsqueeze_(0),
}
KINDS = {
    "plain": lambda: torch.arange(1.0, 4.0),
    "leaf": lambda: torch.arange(1.0, 4.0, requires_grad=True),
    "not a leaf": lambda: torch.arange(1.0, 4.0, requires_grad=True) * 1,
}


def outcome(function, kind):
    x = KINDS[kind]()
    try:
        result = function(x)
    except UnsupportedError:
        return None
    except RuntimeError as error:
        return type(error)
    looks = x.is_leaf, x.requires_grad, x.grad_fn is None, x.shape, x._version
    return looks, x.tolist(), result.requires_grad, result.item()


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("length", [1, 2, 3])
def test_sequences(length, kind):
    refused = 0
    for names in itertools.product(CALLS, repeat=length):
        if not {"detach", "require"} & {*names}:
            continue

        def function(x, names=names):
            for name in names:
                CALLS[name](x)
            return x.sum() * 2

        found = outcome(funcaot.compile(function, backend="eager"), kind)
        refused += found is None
        assert found in (None, outcome(function, kind)), names
    assert refused < 6**length / 4


MADE_INSIDE = {
    "factory": lambda x: (x * 2, torch.ones(2, requires_grad=True)),
    "number": lambda x: (x * 2, torch.scalar_tensor(3.0, requires_grad=True)),
    "parameter": lambda x: (x * 2, torch.nn.Parameter(torch.ones(2))),
}


@pytest.mark.parametrize("name", MADE_INSIDE)
def test_leaves_made_under_transforms(name):
    """Transforms refuse ``requires_grad_()``, though not factories that say it."""
    function = MADE_INSIDE[name]
    compiled = funcaot.compile(function, backend="eager")
    x = torch.ones(4, 3)

    def looks(call):
        results = [
            *call(x),
            *torch.func.vmap(call)(x),
            *torch.func.grad(lambda x: (call(x)[0].sum(), call(x)[1]), has_aux=True)(x),
            *torch.func.jvp(call, (x,), (x,))[0],
        ]
        return [(each.shape, each.requires_grad, each.is_leaf) for each in results]

    assert looks(compiled) == looks(function)
