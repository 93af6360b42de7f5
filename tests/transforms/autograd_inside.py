"""Functions whose backward runs autograd itself, and what is asked of them."""

from __future__ import annotations

import torch
from torch.autograd import forward_ad
from torch.func import grad, hessian, jacrev, jvp, vmap

X = torch.tensor([1.0, 2.0, 3.0])
V = torch.tensor([1.0, -1.0, 0.5])


def cube(x):
    """What each of the Functions computes."""
    return x**3


class Detached(torch.autograd.Function):
    """Adjoint style: differentiate a detached copy of what was saved."""

    generate_vmap_rule = True

    @staticmethod
    def forward(x):
        return cube(x)

    @staticmethod
    def setup_context(ctx, inputs, output):
        ctx.save_for_backward(*inputs)

    @staticmethod
    def backward(ctx, g):
        x = ctx.saved_tensors[0].detach().requires_grad_()
        with torch.enable_grad():
            y = cube(x)
        return torch.autograd.grad(y, x, g)[0]


class CreatesGraph(Detached):
    @staticmethod
    def backward(ctx, g):
        x = ctx.saved_tensors[0].detach().requires_grad_()
        with torch.enable_grad():
            return torch.autograd.grad(cube(x), x, g, create_graph=True)[0]


class CallsBackward(Detached):
    @staticmethod
    def backward(ctx, g):
        x = ctx.saved_tensors[0].detach().requires_grad_()
        with torch.enable_grad():
            y = cube(x)
        y.backward(g)
        return x.grad


class OldStyle(torch.autograd.Function):
    """Checkpoint style, with `forward(ctx, ...)`, and in-place ops in its backward."""

    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x)
        return cube(x)

    @staticmethod
    def backward(ctx, g):
        with torch.no_grad():
            (x,) = (ctx.saved_tensors[0].detach().requires_grad_(),)
            with torch.enable_grad():
                y = x.clone().mul_(x).mul_(x)
            total = torch.zeros_like(x)
            total += torch.autograd.grad(y, x, g)[0]
        return total


class DifferentiatesFunction(Detached):
    """Another Function runs in the backward, with rules of its own."""

    @staticmethod
    def backward(ctx, g):
        x = ctx.saved_tensors[0].detach().requires_grad_()
        with torch.enable_grad():
            y = CubeByHand.apply(x)
        return torch.autograd.grad(y, x, g)[0]


class CubeByHand(torch.autograd.Function):
    generate_vmap_rule = True

    @staticmethod
    def forward(x):
        return x * x * x

    @staticmethod
    def setup_context(ctx, inputs, output):
        ctx.save_for_backward(*inputs)

    @staticmethod
    def backward(ctx, g):
        (x,) = ctx.saved_tensors
        return 3 * x * x * g


class Solved(Detached):
    """Implicit differentiation: the backward is the fixed point of an iteration."""

    @staticmethod
    def backward(ctx, g):
        x = ctx.saved_tensors[0].detach().requires_grad_()
        with torch.enable_grad():
            y = cube(x)
        target = torch.autograd.grad(y, x, g)[0]
        found = torch.zeros_like(target)
        for _ in range(8):
            found = found + 0.9 * (target - found)
        return found


STYLES = (Detached, OldStyle, CreatesGraph, CallsBackward, DifferentiatesFunction, Solved)


def by_backward(f):
    x = X.clone().requires_grad_()
    f(x).backward()
    return x.grad


def twice(f):
    """Second derivative by base autograd."""
    x = X.clone().requires_grad_()
    (g,) = torch.autograd.grad(f(x), x, create_graph=True)
    return torch.autograd.grad(g.sum(), x)[0]


def dual_of_gradient(f):
    x = X.clone().requires_grad_()
    with forward_ad.dual_level():
        dual = forward_ad.make_dual(x, V)
        (g,) = torch.autograd.grad(f(dual), dual, create_graph=True)
        return forward_ad.unpack_dual(g).tangent


def dual(f):
    with forward_ad.dual_level():
        return forward_ad.unpack_dual(f(forward_ad.make_dual(X, V))).tangent


BASE = {"backward": by_backward, "twice": twice}
LEVELS = {
    "grad": lambda f: grad(f)(X),
    "grad_of_grad": lambda f: grad(lambda x: (grad(f)(x) * V).sum())(X),
    "jvp": lambda f: jvp(f, (X,), (V,))[1],
    "jvp_of_grad": lambda f: jvp(grad(f), (X,), (V,))[1],
    "grad_of_jvp": lambda f: grad(lambda x: jvp(f, (x,), (V,))[1])(X),
    "hessian": lambda f: hessian(f)(X),
    "jacrev_of_jacrev": lambda f: jacrev(jacrev(f))(X),
    "vmap_of_grad": lambda f: vmap(grad(f))(torch.stack([X, X + 1])),
    "vmap_of_hessian": lambda f: vmap(hessian(f))(torch.stack([X, X + 1])),
    "third": lambda f: grad(lambda x: (hessian(f)(x) ** 2).sum())(X),
    "dual": dual,
    "dual_of_gradient": dual_of_gradient,
}


__all__ = ["BASE", "LEVELS", "STYLES", "Detached", "V", "X", "cube"]
