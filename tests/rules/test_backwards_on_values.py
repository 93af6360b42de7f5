"""Backwards on real values that are differentiated, or write to what they are given."""

import numpy as np
import pytest
import torch
from torch.autograd import Function
from torch.autograd.function import once_differentiable

import funcaot
from funcaot.errors import UnsupportedError

LOG = []
TABLE = torch.full((3,), 2.0)


class Holder:
    table = torch.full((3,), 3.0)


def of_what_it_is_given(ctx, g):
    return g * 2


def of_what_was_saved(ctx, g):
    return g * ctx.saved_tensors[0].cos()


def of_what_it_stores(ctx, g):
    Holder.table = g.detach() * 2
    return g.detach() * Holder.table


def of_a_table(ctx, g):
    return (g.detach() * TABLE).sin()


def of_its_operand_alone(ctx, g):
    return ctx.saved_tensors[0].sin()


BACKWARDS = [
    of_what_it_is_given,
    of_what_was_saved,
    of_what_it_stores,
    of_a_table,
    of_its_operand_alone,
]


def counting(backward, *, once=False):
    """A Function whose backward counts in a list, so that it runs in each call."""

    def counts(ctx, g):
        LOG.append(round(g.sum().item(), 6))
        return backward(ctx, g)

    def forward(ctx, a):
        ctx.save_for_backward(a)
        return a * 2

    rule = once_differentiable(counts) if once else counts
    members = {"forward": staticmethod(forward), "backward": staticmethod(rule)}
    return type("Counts", (Function,), members)


def numbers(tensor):
    return None if tensor is None else [round(each, 6) for each in tensor.tolist()]


def seen(call, steps, *, counts=True):
    """What a step of gradients of gradients shows, and how often backwards ran."""
    found = []
    for turn in range(3):
        LOG.clear()
        x = torch.linspace(-1, 1, 3, dtype=torch.float64).mul(turn + 1).requires_grad_()
        (first,) = torch.autograd.grad(steps(call(x)), x, create_graph=True)
        found += [numbers(first), first.requires_grad, list(LOG)]
        if first.requires_grad:
            try:
                (second,) = torch.autograd.grad(first.square().sum(), x, allow_unused=True)
            except RuntimeError as error:
                found.append(str(error)[:40])
            else:
                found.append(numbers(second))
        if counts:
            found.append(list(LOG))
    return found


@pytest.mark.parametrize("steps", [torch.sum, lambda y: y.square().sum()], ids=["sum", "square"])
@pytest.mark.parametrize("times", [1, 2, 3])
@pytest.mark.parametrize("backward", BACKWARDS)
def test_requires_grad_and_runs_as_often_as_in_eager(backward, times, steps):
    apply = counting(backward).apply

    def function(x):
        for _ in range(times):
            x = apply(x)
        return x

    # What a second derivative asks of a forward and of its backward runs in two programs.
    counts = times == 1
    found = seen(funcaot.compile(function, backend="eager"), steps, counts=counts)
    assert found == seen(function, steps, counts=counts)


@pytest.mark.parametrize("steps", [torch.sum, lambda y: y.square().sum()], ids=["sum", "square"])
@pytest.mark.parametrize("backward", BACKWARDS)
def test_once_differentiable(backward, steps):
    apply = counting(backward, once=True).apply

    def function(x):
        return apply(x.sin())

    found = seen(funcaot.compile(function, backend="eager"), steps)
    expected = seen(function, steps)
    # Eager leaves out what can't be differentiated, where it isn't asked for anything behind it.
    words = "trying to differentiate twice a function"
    for ours, theirs in zip(found, expected, strict=True):
        assert ours in (theirs, words)


def writes(ctx, g):
    LOG.append(1)
    g.mul_(3)
    return g * 2


def writes_through_a_view(ctx, g):
    LOG.append(1)
    g.detach()[:1].mul_(3)
    return g * 2


def writes_as_an_array(ctx, g):
    g.mul_(3)
    return torch.from_numpy(g.numpy() * np.float32(2))


@pytest.mark.parametrize("backward", [writes, writes_through_a_view, writes_as_an_array])
def test_refuses_one_that_writes_to_its_gradient(backward):
    apply = type(
        "Writes",
        (Function,),
        {"forward": staticmethod(lambda ctx, a: a * 2), "backward": staticmethod(backward)},
    ).apply
    compiled = funcaot.compile(lambda x: apply(x), backend="eager")
    for _ in range(2):
        result = compiled(torch.ones(3, requires_grad=True))
        with pytest.raises(UnsupportedError, match="writes to a tensor that it is given"):
            result.backward(torch.ones(3))
