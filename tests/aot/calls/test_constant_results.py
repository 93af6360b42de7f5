"""Results that are constants at one level don't require grad there, as in eager."""

import pytest
import torch
from torch.func import grad, hessian, jacfwd, jacrev, jvp, vjp, vmap
from torch.utils._pytree import tree_leaves, tree_map

import funcaot

x = torch.linspace(-1, 2, 3, dtype=torch.float64)
w = torch.linspace(1, 3, 3, dtype=torch.float64, requires_grad=True)


def detached(x, w):
    return x.sin() * w.detach(), x.cos()


def of_one_result(x, w):
    return x.sin() * w, x.cos()


def linear(x, w):
    return x + w, x * 2


def without_grad(x, w):
    with torch.no_grad():
        scale = w * 2
    return x * scale, x.cos()


def total(f):
    return lambda x: sum(value.sum() for value in tree_leaves(f(x)))


def tangent(f):
    return lambda x: jvp(f, (x,), (torch.ones_like(x),))


def pulled(f):
    values, pull = vjp(f, x)
    return values, pull(tree_map(torch.ones_like, values))


WAYS = {
    "vmap": lambda f: vmap(f)(x),
    "grad": lambda f: grad(total(f))(x),
    "vjp": pulled,
    "jvp": lambda f: tangent(f)(x),
    "jvp of jvp": lambda f: tangent(tangent(f))(x),
    "jvp of grad": lambda f: tangent(grad(total(f)))(x),
    "grad of jvp": lambda f: grad(total(tangent(total(f))))(x),
    "grad of grad": lambda f: grad(total(grad(total(f))))(x),
    "vmap of jvp": lambda f: vmap(lambda v: jvp(f, (x,), (v,)))(torch.eye(3, dtype=x.dtype)),
    "jacrev": lambda f: jacrev(f)(x),
    "jacfwd": lambda f: jacfwd(f)(x),
    "hessian": lambda f: hessian(total(f))(x),
}


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("function", [detached, of_one_result, linear, without_grad])
def test_what_requires_grad_is_what_does_in_eager(function, way):
    compiled = funcaot.compile(function, backend="eager")
    expected = tree_leaves(WAYS[way](lambda x: function(x, w)))
    for _ in range(2):
        found = tree_leaves(WAYS[way](lambda x: compiled(x, w)))
        torch.testing.assert_close(found, expected, rtol=1e-10, atol=1e-10)
        asked = [value.requires_grad for value in expected]
        assert [value.requires_grad for value in found] == asked
        for value, reference in zip(found, expected, strict=True):
            if reference.requires_grad:
                torch.testing.assert_close(slope(value), slope(reference))


def slope(value):
    return torch.autograd.grad(value.sum(), w, retain_graph=True, allow_unused=True)


def test_a_frozen_network_that_is_closed_over():
    network = torch.nn.Linear(3, 2).double()

    @torch.no_grad()
    def target(x):
        return network(x)

    compiled = funcaot.compile(lambda x: (network(x) - target(x), x * 2), backend="eager")
    doubled = jvp(compiled, (x,), (x,))[1][1]
    assert not doubled.requires_grad
    assert doubled.numpy().tolist() == (x * 2).tolist()
