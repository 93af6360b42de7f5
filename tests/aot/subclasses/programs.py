"""Ops on wrappers for tables and random programs: each takes a tensor and says what comes out."""

from __future__ import annotations

import torch
from torch.utils.checkpoint import checkpoint

__all__ = ["BINARY", "UNARY", "WRITES"]


class Cube(torch.autograd.Function):
    """A function of a user."""

    @staticmethod
    def forward(x):
        return x * x * x

    @staticmethod
    def setup_context(ctx, inputs, output):
        ctx.save_for_backward(*inputs)

    @staticmethod
    def backward(ctx, gradient):
        (x,) = ctx.saved_tensors
        return gradient * x * x * 3


def without_grad(x):
    with torch.no_grad():
        y = x.cos()
    return x * y


def written(x):
    y = x.clone()
    y.mul_(2)
    return y.sin_()


def taken_inside(x):
    y = x.detach().requires_grad_() if not x.requires_grad else x
    (found,) = torch.autograd.grad(y.sin().sum(), y, create_graph=True)
    return x + found


def region(x):
    return checkpoint(lambda y: y.sin().tanh(), x, use_reentrant=False)


UNARY = {
    "sin": lambda x: x.sin(),
    "two": lambda x: (x * 2).tanh(),
    "size": lambda x: x * x.shape[0],
    "clone": lambda x: x.clone() + 1,
    "detach": lambda x: x.detach() * x,
    "sum": lambda x: x.sum(0),
    "mean": lambda x: x.mean(-1, keepdim=True) * x,
    "softmax": lambda x: torch.softmax(x, -1),
    "t": lambda x: x.t(),
    "reshape": lambda x: (x * 2).reshape(-1),
    "unsqueeze": lambda x: x.unsqueeze(1) * 2,
    "part": lambda x: x[1:] * 2,
    "column": lambda x: x[:, 0].exp(),
    "flip": lambda x: x.flip(0) * x,
    "expand": lambda x: x.unsqueeze(0).expand(2, -1, -1) * x,
    "cat": lambda x: torch.cat([x, x * 2]),
    "stack": lambda x: torch.stack([x, x.cos()]).sum(0),
    "split": lambda x: x.split(2, dim=1)[0] * 3,
    "where": lambda x: torch.where(x > 0, x, x * 2),
    "relu": lambda x: x.relu(),
    "clamp": lambda x: x.clamp(min=0.1),
    "product": lambda x: x.t() @ x,
    "layer norm": lambda x: torch.nn.functional.layer_norm(x, x.shape[-1:]),
    "no grad": without_grad,
    "written": written,
    "function": lambda x: Cube.apply(x),
    "checkpoint": region,
    "gradient": taken_inside,
    "itself": lambda x: (x, x * 2),
    "view and more": lambda x: (x.view(x.shape), x.sin()),
}
BINARY = {
    "add": lambda x, y: x + y,
    "mul": lambda x, y: x * y.sin(),
    "sub": lambda x, y: (x - y).relu(),
    "div": lambda x, y: x / (y * y + 1),
    "matmul": lambda x, y: (x @ y.t()) @ y,
    "where": lambda x, y: torch.where(x > y, x, y),
    "addcmul": lambda x, y: torch.addcmul(x, x, y, value=2),
}
WRITES = {
    "mul_": lambda x: x.mul_(2),
    "add_": lambda x: x.add_(1),
    "sin_": lambda x: x.sin_(),
    "row": lambda x: x[0].mul_(3),
    "rows": lambda x: x[1:].add_(1),
    "zero_": lambda x: x[:1].zero_(),
}
