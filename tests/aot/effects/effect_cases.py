"""What a function may do to an input and how what it returns may share memory with it."""

import torch

MUTATIONS = {
    "none": lambda x, w: None,
    "mul_": lambda x, w: x.mul_(2),
    "twice": lambda x, w: x.sin_().add_(1),
    "by a tensor": lambda x, w: x.mul_(w),
    "copy_": lambda x, w: x.copy_(w.expand_as(x)),
    "through a view": lambda x, w: x[0].add_(1),
    "through a flat view": lambda x, w: x.view(-1)[1:].mul_(w),
    "setitem": lambda x, w: x.__setitem__((slice(None), 0), 5.0),
    "detached": lambda x, w: x.detach().mul_(3),
    "data": lambda x, w: x.data.mul_(3),
    "no_grad": lambda x, w: _without_grad(x),
    "out": lambda x, w: torch.add(w.detach(), 1, out=x.detach()[0, :1].squeeze()),
    "foreach": lambda x, w: torch._foreach_mul_([x], [2.0]),
    "lerp_": lambda x, w: x.lerp_(w.expand_as(x), 0.25),
    "t_": lambda x, w: x.t_(),
    "write and t_": lambda x, w: x.mul_(2).t_(),
    "unsqueeze_": lambda x, w: x.unsqueeze_(1),
    "transpose_ and write": lambda x, w: x.transpose_(0, 1).add_(w),
}

ALIASES = {
    "the input": lambda x: x,
    "a view": lambda x: x.view(-1) if x.is_contiguous() else x.t(),
    "an item": lambda x: x[0],
    "two views": lambda x: (x[0], x[1:]),
    "detached": lambda x: x.detach(),
    "an intermediate": lambda x: x * 2,
    "a view of an intermediate": lambda x: (x * 2)[0],
    "an intermediate and its views": lambda x: (lambda y: (y[0], y, y.t()))(x * 2),
    "views of a detached intermediate": lambda x: (lambda y: (y[0], y[1]))((x * 2).detach()),
    "an intermediate and it detached": lambda x: (lambda y: (y, y.detach()))(x.sin()),
    "the same twice": lambda x: (lambda y: (y, y))(x.sin()),
    "a written intermediate": lambda x: (lambda y: (y[0].mul_(3), y))(x * 2),
    "with one that needs no grad": lambda x: (x.sin(), x.detach().cos(), x > 0),
}


def _without_grad(x):
    with torch.no_grad():
        x.mul_(2)
