"""A ``setup_context`` that computes with a tensor which it finds by itself."""

import pytest
import torch
from torch.autograd import Function

import funcaot


class Holder:
    table = torch.ones(3)


def made(*, dirty=False):
    class Keeps(Function):
        generate_vmap_rule = True

        @staticmethod
        def forward(a):
            return a.mul_(2) if dirty else a * 2

        @staticmethod
        def setup_context(ctx, inputs, output):
            if dirty:
                ctx.mark_dirty(inputs[0])
            ctx.table = Holder.table.clone()
            ctx.save_for_backward(Holder.table * 2)

        @staticmethod
        def backward(ctx, g):
            return g * ctx.table + ctx.saved_tensors[0]

    return Keeps


CALLS = {
    "plain": lambda f, x: f(x.sin()),
    "grad": lambda f, x: torch.func.grad(lambda y: f(y * 1).sum())(x),
}


@pytest.mark.parametrize("dirty", [False, True])
@pytest.mark.parametrize("call", CALLS)
def test_is_compiled(call, dirty):
    apply = made(dirty=dirty).apply

    def function(x):
        return CALLS[call](apply, x)

    compiled = funcaot.compile(function, backend="eager", fullgraph=True)
    for turn in range(3):
        Holder.table = torch.arange(3.0) + turn
        found = []
        for each in (function, compiled):
            x = torch.linspace(-1, 1, 3).requires_grad_()
            result = each(x)
            Holder.table.mul_(2)
            gradient = torch.autograd.grad(result.sum(), x)[0] if result.requires_grad else None
            found.append((result, gradient))
            Holder.table.div_(2)
        torch.testing.assert_close(found[1], found[0])
    assert len(compiled.entries) == 1
