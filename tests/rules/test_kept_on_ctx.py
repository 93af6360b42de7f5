"""Tensors from before a call that a Function keeps on ctx, and that somebody replaces later."""

import types

import pytest
import torch
from torch.testing import assert_close

import funcaot


def _made(keep, read, *, setup, values):
    """A Function that keeps something, and whose gradient is what it reads of that."""

    def backward(ctx, gradient):
        if values:
            gradient = gradient * (2.0 if gradient.sum().item() < 1e9 else 1.0)
        return gradient * read(ctx)

    class New(torch.autograd.Function):
        @staticmethod
        def forward(x):
            return x * 2

        @staticmethod
        def setup_context(ctx, inputs, output):
            keep(ctx)

    class Old(torch.autograd.Function):
        @staticmethod
        def forward(ctx, x):
            keep(ctx)
            return x * 2

    made = New if setup else Old
    made.backward = staticmethod(backward)
    return lambda x: made.apply(x.sin()).sum()


def _agrees(compiled, function):
    x = torch.randn(2, 3, requires_grad=True)
    (expected,) = torch.autograd.grad(function(x), x)
    assert_close(torch.autograd.grad(compiled(x), x)[0], expected)


@pytest.mark.parametrize("setup", [False, True])
@pytest.mark.parametrize("values", [False, True])
@pytest.mark.parametrize("is_saved", [False, True])
def test_a_table_that_was_there_before_may_be_replaced(is_saved, values, setup):
    tables = {"now": torch.ones(3)}

    def keep(ctx):
        if is_saved:
            ctx.save_for_backward(tables["now"])
        else:
            ctx.table = tables["now"]

    def read(ctx):
        return ctx.saved_tensors[0] if is_saved else ctx.table

    function = _made(keep, read, setup=setup, values=values)
    compiled = funcaot.compile(function, backend="eager")
    _agrees(compiled, function)
    tables["now"].mul_(3)
    _agrees(compiled, function)
    for value in (5.0, 7.0):
        tables["now"] = torch.full((3,), value)
        _agrees(compiled, function)
    assert funcaot.report(compiled).cache_misses == 1


@pytest.mark.parametrize("setup", [False, True])
@pytest.mark.parametrize("values", [False, pytest.param(True, marks=pytest.mark.long)])
@pytest.mark.parametrize("is_saved", [False, True])
def test_a_parameter_that_is_no_operand_may_be_replaced(is_saved, values, setup):
    layer = torch.nn.Linear(3, 1)

    def keep(ctx):
        if is_saved:
            ctx.save_for_backward(layer.weight)
        else:
            ctx.weight = layer.weight

    def read(ctx):
        return ctx.saved_tensors[0] if is_saved else ctx.weight

    function = _made(keep, read, setup=setup, values=values)
    compiled = funcaot.compile(function, backend="eager")
    for _ in range(3):
        _agrees(compiled, function)
        layer.weight = torch.nn.Parameter(torch.randn(1, 3))
    with torch.no_grad():
        layer.weight.mul_(2)
    _agrees(compiled, function)


@pytest.mark.parametrize("values", [False, True])
def test_a_table_in_an_object_that_forward_makes_may_be_replaced(values):
    tables = {"now": torch.ones(3)}

    def keep(ctx):
        ctx.kept = types.SimpleNamespace(table=tables["now"])

    function = _made(keep, lambda ctx: ctx.kept.table, setup=False, values=values)
    compiled = funcaot.compile(function, backend="eager")
    for value in (1.0, 2.0, 3.0):
        tables["now"] = torch.full((3,), value)
        _agrees(compiled, function)
