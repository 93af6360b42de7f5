"""What many ranks run, of which rank 0 compiles the programs: functions, and who calls them."""

from __future__ import annotations

from typing import Any

import torch
import torch.distributed as dist
import torch.distributed._functional_collectives as functional
from torch import nn


class _Groups:
    """Groups that functions of this module name."""

    pair: Any = None


groups = _Groups()


def reduced(x):
    return functional.all_reduce(x.sin(), "sum", dist.group.WORLD).square().cos()


def reduced_in_place(x):
    found = x.sin()
    dist.all_reduce(found)
    return found * x.cos()


def averaged_in_a_group(x):
    found = functional.all_reduce(x.sin(), "sum", groups.pair)
    return found.square() / dist.get_world_size()


def gathered(x):
    whole = functional.all_gather_tensor_autograd(x.sin(), 0, dist.group.WORLD)
    return functional.reduce_scatter_tensor_autograd(
        whole.square(), "sum", 0, dist.group.WORLD
    ).cos()


def exchanged(x):
    part = [x.shape[0] // 2] * 2
    return functional.all_to_all_single_autograd(x.sin(), part, part, dist.group.WORLD).square()


def sent_by_one(x):
    weights = torch.linspace(1, 2, x.shape[-1])
    dist.broadcast(weights, 1)
    return (x * weights).sin()


class Sum(torch.autograd.Function):
    """The sum over the ranks, whose adjoint is the same."""

    @staticmethod
    def forward(x, group):
        return functional.all_reduce(x, "sum", group)

    @staticmethod
    def setup_context(ctx, inputs, output):
        ctx.group = inputs[1]

    @staticmethod
    def backward(ctx, gradient):
        return Sum.apply(gradient.contiguous(), ctx.group), None


def by_a_rule(x):
    return Sum.apply(x.sin(), groups.pair).square().cos()


FUNCTIONS = {
    function.__name__: function
    for function in (
        reduced,
        reduced_in_place,
        averaged_in_a_group,
        gathered,
        exchanged,
        sent_by_one,
        by_a_rule,
    )
}


class Energy(nn.Module):
    """A small energy per structure."""

    def __init__(self, features: int = 4) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.first, self.last = nn.Linear(3, features), nn.Linear(features, 2)

    def forward(self, x):
        return self.last(torch.tanh(self.first(x)))


def derivatives(function, x, order):
    """The value and what the orders up to this one give, also of parameters."""
    x = x.detach().requires_grad_(order > 0)
    parameters = [p for p in getattr(function, "parameters", list)() if p.requires_grad]
    value = function(x)
    if order == 0:
        return [value]
    if order == 1:
        value.sum().backward()
        return [value, x.grad, *(parameter.grad for parameter in parameters)]
    (gradient,) = torch.autograd.grad(value.sum(), x, create_graph=True)
    gradient.square().sum().backward()
    return [value, gradient, x.grad, *(parameter.grad for parameter in parameters)]


def whole(tensors):
    """The same, detached, with what is sharded gathered."""
    found = [None if t is None else t.detach() for t in tensors]
    return [t.full_tensor() if hasattr(t, "full_tensor") else t for t in found]
