"""Gradients for which torch has one formula for eager and another for tensors that are recorded."""

import math

import pytest
import torch

import funcaot
from tests.opinfo.layouts import LAYOUTS

MASK = torch.arange(12).view(3, 4) % 3 > 0
WHOLE = {
    "max": lambda x: x.max(),
    "min": lambda x: x.min(),
    "median": lambda x: x.median(),
    "nanmedian": lambda x: x.nanmedian(),
}
PRODUCTS = {
    "prod": lambda x: x.prod(),
    "prod of rows": lambda x: x.prod(1),
}
OTHERS = {
    "masked_select": lambda x: x.masked_select(MASK),
    "masked_select of a row": lambda x: x[0].masked_select(MASK),
    "cov": lambda x: torch.cov(x),
    "corrcoef": lambda x: torch.corrcoef(x),
    "combinations": lambda x: torch.combinations(x[0]),
}
ALL = {**WHOLE, **PRODUCTS, **OTHERS}


def numbers(*shape):
    drawn = torch.randn(shape, generator=torch.Generator().manual_seed(2), dtype=torch.float64)
    return drawn + 0.1 * drawn.sign()


def same(found, wanted):
    assert [x.stride() for x in found] == [x.stride() for x in wanted]
    torch.testing.assert_close(found, wanted, equal_nan=True)


def orders(function, x, arriving):
    """The gradient and those of a weighted sum of it."""
    x = x.detach().requires_grad_()
    arriving = arriving.detach().requires_grad_()
    first = torch.autograd.grad(function(x), x, arriving, create_graph=True)
    weighted = (first[0] * numbers(*x.shape)).sum()
    second = torch.autograd.grad(weighted, (x, arriving), allow_unused=True)
    # A derivative that is zero is None in some formulas of eager.
    return [*first, *(x for x in second if x is not None and x.abs().sum())]


@pytest.mark.parametrize("name", ALL)
def test_gradients_lie_as_in_eager(name):
    function = ALL[name]
    compiled = funcaot.compile(lambda x: function(x), backend="eager", fullgraph=True)
    for layout in ("turned", "sliced", "expanded"):
        x = LAYOUTS[layout](numbers(3, 4))
        arriving = numbers(*function(x).shape)
        same(orders(compiled, x, arriving)[:1], orders(function, x, arriving)[:1])


@pytest.mark.parametrize("name", ["max", "nanmedian", "prod", "prod of rows"])
@pytest.mark.parametrize("special", [None, 0.0, math.inf, math.nan])
def test_values_as_in_eager(name, special):
    """Infinite and undefined gradients and elements, zeros, and what is differentiated again."""
    function = ALL[name]
    compiled = funcaot.compile(lambda x: function(x), backend="eager", fullgraph=True)
    x = numbers(3, 4)
    if special is not None:
        x[1, 1] = special
    for number in (1.0, math.inf, math.nan):
        arriving = torch.full(function(x).shape, number, dtype=x.dtype)
        if special in (None, 0.0) and number == 1.0:
            same(orders(compiled, x, arriving), orders(function, x, arriving))
        x.requires_grad_()
        found, wanted = (torch.autograd.grad(each(x), x, arriving) for each in (compiled, function))
        same(found, wanted)


@pytest.mark.parametrize("name", [
    "max", "prod of rows",
    *(pytest.param(name, marks=pytest.mark.slow) for name in ("min", "nanmedian", "prod")),
])  # fmt: skip
def test_under_transforms(name):
    function = ALL[name]
    compiled = funcaot.compile(lambda x: function(x), backend="eager")
    x = numbers(3, 4)

    def asked(f):
        def loss(x):
            return f(x).sin().sum()

        batch = torch.stack([x, x * 2, x.flip(0)])
        return [
            *torch.func.jvp(f, (x,), (x.cos(),)),
            torch.func.jvp(torch.func.grad(loss), (x,), (x.cos(),))[1],
            torch.func.vmap(torch.func.grad(loss))(batch),
        ]

    same(asked(compiled), asked(function))


def test_the_largest_element_is_kept_for_the_gradient():
    graphs = []

    def keep(graph, examples):
        graphs.append([node.target for node in graph.graph.nodes])
        return graph

    x = numbers(5).requires_grad_()
    funcaot.compile(lambda x: x.max() * 2, backend=keep)(x).backward()
    largest = torch.ops.aten.max.default
    assert [largest in targets for targets in graphs] == [True, False]


class Opaque(torch.autograd.Function):
    """A backward that no graph can hold."""

    ran = 0

    @staticmethod
    def forward(x):
        return x * 2

    @staticmethod
    def setup_context(ctx, inputs, output):
        ctx.save_for_backward(*inputs)

    @staticmethod
    def backward(ctx, gradient):
        (x,) = ctx.saved_tensors
        Opaque.ran += 1
        return torch.zeros_like(x).add_(gradient) * float(gradient.detach().numpy().max())


def test_a_backward_on_real_values_counts_once():
    x = LAYOUTS["turned"](numbers(3, 4)).requires_grad_()
    compiled = funcaot.compile(lambda x: Opaque.apply(x).sin(), backend="eager")
    for count in range(1, 4):
        arriving = numbers(3, 4) * count
        wanted = torch.autograd.grad(Opaque.apply(x).sin(), x, arriving)
        Opaque.ran = 0
        torch.testing.assert_close(torch.autograd.grad(compiled(x), x, arriving), wanted)
        assert Opaque.ran == 1
