"""What forward of a Function computes and stores is there after each call, as in eager."""

from __future__ import annotations

import numpy as np
import pytest
import torch

import funcaot
from funcaot.errors import UnsupportedError


class Store:
    kept: torch.Tensor | None = None


MADE_ONCE = None


def once(x):
    global MADE_ONCE
    if MADE_ONCE is None or MADE_ONCE.shape != x.shape:
        MADE_ONCE = torch.eye(len(x))[0] * 2
    return MADE_ONCE


def average(x):
    new = x.detach().mean()
    Store.kept = new if Store.kept is None else 0.9 * Store.kept + 0.1 * new
    return Store.kept


def counted(x):
    if Store.kept is None:
        Store.kept = torch.zeros(())
    return Store.kept.add_(x.detach().sum())


def drawn(x):
    Store.kept = torch.rand_like(x)
    return Store.kept


def function_of(change):
    class Sine(torch.autograd.Function):
        @staticmethod
        def forward(x):
            return x.sin() * change(x)

        @staticmethod
        def setup_context(ctx, inputs, output):
            ctx.save_for_backward(*inputs)

        @staticmethod
        def backward(ctx, g):
            return g * ctx.saved_tensors[0].cos()

    return Sine


def history(call):
    """What five calls of two sizes return and leave behind; it is forgotten in between."""
    global MADE_ONCE
    Store.kept = MADE_ONCE = None
    torch.manual_seed(0)
    found = []
    for step, size in enumerate((3, 3, 4, 4, 3)):
        x = torch.linspace(0.1, 1.0 + step, size).requires_grad_()
        y = call(x)
        (gradient,) = torch.autograd.grad(y.sum(), x)
        kept = [t for t in (Store.kept, MADE_ONCE) if t is not None]
        state = [(t.detach().clone(), t.requires_grad, t is x) for t in kept]
        found.append((y.detach(), gradient, state))
        if step == 2:
            Store.kept = None
    return found


def check(change, backend, most):
    function = function_of(change)

    def twice(x):
        return function.apply(function.apply(x * 2))

    compiled = funcaot.compile(twice, backend=backend)
    torch.testing.assert_close(history(compiled), history(twice))
    assert funcaot.report(compiled).cache_misses <= most


CHANGES = [once, average, counted, drawn]


@pytest.mark.parametrize("change", CHANGES, ids=lambda change: change.__name__)
def test_as_in_eager(change):
    check(change, "eager", 4)


@pytest.mark.slow
@pytest.mark.parametrize("change", [average, counted], ids=lambda change: change.__name__)
def test_on_inductor(change):
    check(change, "inductor", 4)


def by_numpy(x):
    Store.kept = torch.from_numpy(np.cos(x.detach().numpy()))
    return Store.kept


def by_value(x):
    Store.kept = x.detach() * 2
    return 2.0 if x.sum().item() > 3 else 1.0


@pytest.mark.parametrize("stored", [by_numpy, by_value])
def test_what_runs_on_real_values_is_refused_by_name(stored):
    x = torch.ones(3, requires_grad=True)
    with pytest.raises(UnsupportedError, match="runs on real values may have stored it"):
        funcaot.compile(function_of(stored).apply, backend="eager")(x)
