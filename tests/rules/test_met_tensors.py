"""Tensors that a forward met somewhere and keeps on ctx; others write to them before a backward."""

import types

import numpy as np
import pytest
import torch
from torch.autograd import Function

import funcaot


class Holder:
    """Holds a table, and what a function stores."""

    def __init__(self):
        self.table, self.last, self.slope = torch.ones(2), None, 0.5


HOLDER = Holder()
FORWARDS = {
    "traced": lambda a: a * 1.5,
    "on values": lambda a: torch.from_numpy(a.detach().numpy() * np.float32(1.5)),
}
TABLES = {"given": lambda given: given.table, "global": lambda given: HOLDER.table}


def made(forward, table, *, split, saves):
    """A Function that keeps a table, as an attribute or by ``save_for_backward``."""
    compute, find = FORWARDS[forward], TABLES[table]

    def keep(ctx, given):
        if saves:
            ctx.save_for_backward(find(given))
        else:
            ctx.table = find(given)

    def whole(ctx, a, given):
        keep(ctx, given)
        return compute(a)

    def part(a, given):
        return compute(a)

    def setup_context(ctx, inputs, output):
        keep(ctx, inputs[1])

    def backward(ctx, g):
        return g * (ctx.saved_tensors[0] if saves else ctx.table), None

    members = {
        "forward": staticmethod(part if split else whole),
        "backward": staticmethod(backward),
    }
    if split:
        members["setup_context"] = staticmethod(setup_context)
    return type("Keeps", (Function,), members)


def stores(function):
    def body(x, given):
        given.last = x = function.apply(x, given)
        return x, given.table

    return body


def goes_on(function):
    def body(x, given):
        return function.apply(x, given).sin(), given.slope

    return body


def seen(call):
    """Gradients of calls between which, and between whose halves, tables are written to."""
    given, found = Holder(), []
    for turn in range(4):
        HOLDER.table = torch.full((2,), 2.0)
        if turn == 2:
            given.table = torch.full((2,), 3.0)
        x = torch.ones(2, requires_grad=True)
        result, _ = call(x, given)
        if turn != 1:
            given.table.mul_(3)
            HOLDER.table.mul_(5)
        try:
            result.sum().backward()
        except RuntimeError as error:
            found.append(str(error)[:70])
        else:
            found.append(x.grad.tolist())
    return found


@pytest.mark.parametrize("body", [stores, goes_on])
@pytest.mark.parametrize("saves", [False, True])
@pytest.mark.parametrize("split", [False, True])
@pytest.mark.parametrize("table", TABLES)
@pytest.mark.parametrize("forward", FORWARDS)
def test_backward_sees_what_is_written(forward, table, split, saves, body):
    function = body(made(forward, table, split=split, saves=saves))
    assert seen(funcaot.compile(function, backend="eager", fullgraph=True)) == seen(function)


@pytest.mark.slow
@pytest.mark.parametrize("body", [stores, goes_on])
@pytest.mark.parametrize("table", TABLES)
@pytest.mark.parametrize("forward", FORWARDS)
def test_backward_sees_what_is_written_on_inductor(forward, table, body):
    function = body(made(forward, table, split=False, saves=False))
    assert seen(funcaot.compile(function, fullgraph=True)) == seen(function)


class Stores(Function):
    """Stores what it computes in an object that it keeps, and reads a number there later."""

    @staticmethod
    def forward(ctx, a, given):
        ctx.given = given
        given.last = a.detach() * 2
        return a * 2

    @staticmethod
    def backward(ctx, g):
        return g * ctx.given.slope, None


@pytest.mark.parametrize("twice", [False, True])
def test_an_object_with_a_parameter_stays_the_callers(twice):
    def function(x, given):
        given.first = x
        x = Stores.apply(x * given.weight, given)
        return Stores.apply(x, given) if twice else x

    def seen(call):
        given, found = types.SimpleNamespace(slope=0.5, last=None), []
        given.weight = torch.nn.Parameter(torch.full((2,), 3.0))
        given.unread = torch.nn.Linear(2, 2)
        for turn in range(3):
            x = torch.ones(2, requires_grad=True)
            result = call(x, given)
            given.slope += turn
            result.sum().backward()
            found.append((x.grad.tolist(), given.weight.grad.tolist(), given.last.tolist()))
        return found

    compiled = funcaot.compile(function, backend="eager", fullgraph=True)
    assert seen(compiled) == seen(function)
