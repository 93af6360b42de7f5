"""``torch.func.linearize`` inside of a compiled function: its linear function is recorded.

The oracle is ``jvp``: torch's own ``linearize`` reads uninitialized memory where its linear
function is differentiated by what it was made at.
"""

import pytest
import torch
from torch.func import grad, jvp, linearize, vmap

import funcaot
from tests.aot.subclasses.kinds import made, same
from tests.hostile import COMPILER

pytestmark = pytest.mark.filterwarnings("ignore::UserWarning")


def by_jvp(function, *primals):
    return function(*primals), lambda *tangents: jvp(function, primals, tangents)[1]


def product(x, w):
    return (x @ w).tanh()


def tree(x):
    return {"a": x.sin(), "b": [x.sum(), x * 2]}


def written(x):
    y = x * 2
    y.mul_(x).add_(1)
    y[0] = 3.0
    return y.exp()


PROGRAMS = {
    "one": lambda x, linear: (lambda y, push: y * push(x.cos()))(*linear(torch.sin, x)),
    "twice": lambda x, linear: (lambda y, push: (y, push(x), push(x * 2)))(*linear(torch.exp, x)),
    "two primals": lambda x, linear: (lambda y, push: y + push(x * 3, x.t()))(
        *linear(product, x, x.t())
    ),
    "structures": lambda x, linear: linear(tree, x)[1](x.cos()),
    "writes": lambda x, linear: linear(written, x)[1](x),
    "under grad": lambda x, linear: grad(lambda y: linear(torch.tanh, x)[1](y).sum())(x),
    "each tangent": lambda x, linear: vmap(linear(torch.tanh, x)[1])(torch.stack([x, x * 2])),
    "inside of a transform": lambda x, linear: vmap(lambda y: linear(torch.sin, y)[1](y.exp()))(x),
}


@pytest.mark.parametrize("program", PROGRAMS)
def test_as_by_jvp(program):
    body = PROGRAMS[program]
    compiled = funcaot.compile(lambda x: body(x, linearize), backend=COMPILER)
    for seed in range(3):
        x = made(seed, 3, 3, grad=False)
        same(compiled(x), body(x, by_jvp), rtol=1e-4, atol=1e-5)
    assert len(compiled.entries) == 1


@pytest.mark.parametrize("program", ["one", "two primals", "writes"])
def test_gradients(program):
    body = PROGRAMS[program]
    compiled = funcaot.compile(lambda x: body(x, linearize), backend=COMPILER)
    for seed in range(2):
        both = []
        for function in (compiled, lambda x: body(x, by_jvp)):
            x = made(seed, 3, 3)
            (first,) = torch.autograd.grad(function(x).sum(), x, create_graph=True)
            both.append([first.detach(), *torch.autograd.grad(first.sin().sum(), x)])
        same(*both, rtol=1e-4, atol=1e-5)


MADE_OUTSIDE = {
    "itself": lambda push: push,
    "called": lambda push: lambda t: push(t) * 2,
    "for each": lambda push: lambda t: vmap(push)(torch.stack([t, t * 3])),
}


@pytest.mark.parametrize("was_called", [False, True])
@pytest.mark.parametrize("used", MADE_OUTSIDE)
def test_made_outside(used, was_called):
    """Torch computes its constants in the first call, into parameters of a module."""
    x = made(0, 3, 3, grad=False)
    push = linearize(torch.tanh, x)[1]
    if was_called:
        push(x)
    compiled = funcaot.compile(MADE_OUTSIDE[used](push), backend=COMPILER)
    expected = MADE_OUTSIDE[used](by_jvp(torch.tanh, x)[1])
    for seed in range(1, 4):
        t = made(seed, 3, 3, grad=False)
        same(compiled(t), expected(t), rtol=1e-4, atol=1e-5)
        same(vmap(compiled)(t[None]), vmap(expected)(t[None]), rtol=1e-4, atol=1e-5)
    same(push(x), by_jvp(torch.tanh, x)[1](x), rtol=1e-4, atol=1e-5)


def test_what_does_not_fit_raises_as_in_eager():
    def wrong(x):
        return linearize(torch.sin, x)[1](x[0])

    compiled = funcaot.compile(wrong, backend=COMPILER)
    for function in (wrong, compiled):
        with pytest.raises(RuntimeError, match="doesn't match the shape"):
            function(made(0, 3, 3, grad=False))
