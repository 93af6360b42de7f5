"""A Function that writes to one input and returns a view of another one writes once."""

from __future__ import annotations

import pytest
import torch
from torch.func import vmap

import funcaot

COUNTED: list[int] = []


def dirty_and_view(ctx, x, y):
    ctx.mark_dirty(x)
    return x.mul_(2), y.view_as(y)


def dirty_and_same(ctx, x, y):
    ctx.mark_dirty(x)
    return x.mul_(2), y


def dirty_and_part(ctx, x, y):
    ctx.mark_dirty(x)
    x[0:1].mul_(2)
    return x, y[0:1]


def dirty_and_view_of_it(ctx, x, y):
    ctx.mark_dirty(x)
    x.mul_(2)
    return x, x.view(-1), y * x


def both_dirty(ctx, x, y):
    ctx.mark_dirty(x, y)
    x.mul_(2)
    y.add_(x)
    return x, y, x.view(-1)[0:3]


def undeclared(_ctx, x, y):
    x.mul_(2)
    return x * 3, y.view_as(y)


def counting(_ctx, x, y):
    COUNTED.append(1)
    return x * len(COUNTED), y.view_as(y)


def drawing(_ctx, x, y):
    return x + torch.rand(3), y.view_as(y)


FORWARDS = [
    dirty_and_view,
    dirty_and_same,
    dirty_and_part,
    dirty_and_view_of_it,
    both_dirty,
    undeclared,
    counting,
    drawing,
]


def made_of(forward):
    def backward(ctx, *gradients):
        return gradients[0], gradients[1]

    members = {"forward": staticmethod(forward), "backward": staticmethod(backward)}
    return type("Writes", (torch.autograd.Function,), members)


def calls(function):
    COUNTED.clear()
    torch.manual_seed(0)
    found = []
    for step in range(3):
        x = torch.arange(6.0).reshape(2, 3) + step
        y = x + 10
        found.append((function(x, y), torch.rand(2), x, y, len(COUNTED), x._version, y._version))
    return found


@pytest.mark.parametrize("forward", FORWARDS, ids=lambda forward: forward.__name__)
def test_writes_once(forward):
    apply = made_of(forward).apply

    def function(x, y):
        with torch.no_grad():
            return [value * 1 for value in apply(x, y)]

    wanted = calls(function)
    got = calls(funcaot.compile(function, backend="eager"))
    torch.testing.assert_close(got, wanted, rtol=0, atol=0)


def test_under_vmap_inside():
    apply = made_of(dirty_and_view).apply

    def function(x, y):
        return vmap(lambda x, y: funcaot.custom_function_call(Batched, x * 1, y))(x, y)

    class Batched(funcaot.Function):
        generate_vmap_rule = True

        @staticmethod
        def forward(x, y):
            return x.mul_(2), y.view_as(y)

        @staticmethod
        def setup_context(ctx, inputs, output):
            ctx.mark_dirty(inputs[0])

    x, y = torch.rand(2, 3), torch.rand(2, 3)
    wanted = apply(x * 1, y)
    torch.testing.assert_close(funcaot.compile(function, backend="eager")(x, y), wanted)
