"""Functions that are given callables and objects with tensors of the program inside."""

from __future__ import annotations

import functools

import pytest
import torch
from torch.func import grad, vmap

import funcaot


class Solve(torch.autograd.Function):
    """As solvers do: differentiate the callable in the backward."""

    @staticmethod
    def forward(ctx, f, x, *p):
        ctx.f = f
        ctx.save_for_backward(x, *p)
        return f(x)

    @staticmethod
    def backward(ctx, g):
        x, *p = ctx.saved_tensors
        with torch.enable_grad():
            x = x.detach().requires_grad_()
            y = ctx.f(x)
        return None, *torch.autograd.grad(y, [x, *p], g, allow_unused=True)


class Scale:
    def __init__(self, p):
        self.p = p

    def __call__(self, x):
        return x * self.p


def through_closure(x, p):
    q = p * p
    return (Solve.apply(lambda z: z * q, x, q) * p).sum()


def through_partial(x, p):
    return Solve.apply(functools.partial(torch.mul, p), x, p).sum()


def through_method(x, p):
    return Solve.apply(Scale(p).__call__, x, p).sum()


def through_object(x, p):
    return Solve.apply(Scale(p * 2), x, p).sum()


CASES = (through_closure, through_partial, through_method, through_object)


@pytest.mark.parametrize("f", CASES)
def test_callables(f):
    compiled = funcaot.compile(f, backend="eager")
    for _ in range(3):
        x, p = (torch.randn(2, requires_grad=True) for _ in range(2))
        expected, found = f(x, p), compiled(x, p)
        torch.testing.assert_close(found, expected)
        wanted = torch.autograd.grad(expected, (x, p), allow_unused=True)
        got = torch.autograd.grad(found, (x, p), allow_unused=True)
        torch.testing.assert_close(got, wanted)


class Mask:
    kept = None


class Drop(torch.autograd.Function):
    """As in DeBERTa: the mask is kept on an object that forward is given."""

    @staticmethod
    def forward(ctx, x, holder):
        if holder.kept is None:
            holder.kept = torch.rand(x.shape) < 0.5
        ctx.save_for_backward(holder.kept)
        return x.masked_fill(holder.kept, 0)

    @staticmethod
    def backward(ctx, g):
        return g.masked_fill(ctx.saved_tensors[0], 0), None


def test_an_object_that_forward_writes_to():
    def f(x):
        holder = Mask()
        return Drop.apply(x, holder) + 2 * Drop.apply(x * 2, holder)

    compiled = funcaot.compile(f, backend="inductor")
    for _ in range(3):
        x = torch.ones(50, requires_grad=True)
        y = compiled(x)
        (g,) = torch.autograd.grad(y.sum(), x)
        assert torch.equal(g, y)  # one mask for both calls, and for the backward
        assert set(y.tolist()) == {0.0, 5.0}


def test_grad_is_set_after_a_transform_inside():
    p = torch.nn.Parameter(torch.ones(3))

    def step(x):
        g = vmap(grad(lambda q, x: (q * x).sum()), (None, 0))(p.detach(), x)
        p.grad = g.mean(0)
        return x

    compiled = funcaot.compile(step, backend="eager")
    for _ in range(3):
        x = torch.randn(2, 3)
        compiled(x)
        torch.testing.assert_close(p.grad, x.mean(0))


@pytest.mark.parametrize("backend", ["eager", "inductor"])
def test_none_stays_none_beside_a_write(backend):
    def f(a, b, c):
        a.mul_(2)
        c.mul_(3)
        return a * b * 1, c * 1

    compiled = funcaot.compile(f, backend=backend)
    for _ in range(3):
        found = []
        for call in (f, compiled):
            leaves = [torch.ones(3, requires_grad=True) for _ in range(3)]
            first, second = call(*[leaf * 1 for leaf in leaves])
            found.append(
                [
                    torch.autograd.grad(y.sum(), leaves, allow_unused=True, retain_graph=True)
                    for y in (first, second)
                ]
            )
        torch.testing.assert_close(found[1], found[0])
