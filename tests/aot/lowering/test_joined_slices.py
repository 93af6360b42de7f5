"""Sums of gradients of slices become ``cat`` where that is exact, and stay what they were."""

import math

import pytest
import torch
from torch.fx.experimental.proxy_tensor import make_fx

import funcaot
from funcaot.aot.lowering.joined_slices import joined_slices

aten = torch.ops.aten
SIZE = 64


def padded(gradient, start, end, size=SIZE, step=1):
    """The gradient of ``x[:, start:end:step]`` of an x of so many columns."""
    return aten.slice_backward(gradient, [gradient.shape[0], size], 1, start, end, step)


def graph_of(function, *inputs):
    module = make_fx(function, tracing_mode="fake")(*inputs)
    before = str(module.graph)
    made = joined_slices(module)
    assert str(module.graph) == before
    made.graph.lint()
    return made


def ops(module):
    return [node.target for node in module.graph.nodes if node.op == "call_function"]


def parts(*widths):
    return [torch.randn(3, width) for width in widths]


SUMS = {
    "all of it": lambda a, b, c: padded(a, 0, 16) + padded(b, 16, 40) + padded(c, 40, SIZE),
    "any order": lambda a, b, c: padded(c, 40, 2**63 - 1) + (padded(a, 0, -48) + padded(b, 16, 40)),
    "a gap": lambda a, b, c: padded(b, 0, 24) + padded(c, 40, SIZE),
    "a gap at the end": lambda a, b, c: padded(a, 0, 16) + padded(b, 16, 40),
    "another tensor": lambda a, b, c: (
        (b.sum() * torch.ones(3, SIZE) + padded(c, 0, 24)) + padded(b, 24, 48)
    ),
}
STAY = {
    "overlap": lambda a, b, c: padded(b, 0, 24) + padded(c, 20, 44),
    "one piece": lambda a, b, c: padded(b, 0, 24) + torch.ones(3, SIZE),
    "little of it": lambda a, b, c: padded(a, 0, 16, 100) + padded(b, 40, 64, 100),
    "steps": lambda a, b, c: padded(b, 0, 48, step=2) + padded(c, 1, 49, step=2),
    "a scaled term": lambda a, b, c: torch.add(padded(b, 0, 24), padded(c, 24, 48), alpha=2),
    "another dtype": lambda a, b, c: padded(b, 0, 24) + padded(c, 24, 48).double(),
    "two other tensors": lambda a, b, c: (
        ((padded(b, 0, 24) + torch.ones(3, SIZE)) + torch.full((3, SIZE), 0.1)) + padded(c, 24, 48)
    ),
    "short runs": lambda a, b, c: padded(a[:, :4], 0, 4, 8) + padded(a[:, :4], 4, 8, 8),
}


@pytest.mark.parametrize("what", SUMS)
def test_the_sum_is_the_same_to_the_sign_of_zero(what):
    inputs = parts(16, 24, 24)
    inputs[1][0, 0], inputs[2][1, 3] = -0.0, math.nan
    made = graph_of(SUMS[what], *inputs)
    assert aten.cat.default in ops(made)
    assert aten.slice_backward.default not in ops(made)
    given, expected = made(*inputs), SUMS[what](*inputs)
    assert given.stride() == expected.stride()
    torch.testing.assert_close(given, expected, rtol=0, atol=0, equal_nan=True)
    assert torch.equal(torch.signbit(given), torch.signbit(expected))


@pytest.mark.parametrize("what", STAY)
def test_what_would_be_another_sum_stays(what):
    made = graph_of(STAY[what], *parts(16, 24, 24))
    assert aten.cat.default not in ops(made)


def test_a_sum_that_is_read_twice_is_a_term_of_the_other():
    def function(a, b, c):
        first = padded(a, 0, 16) + padded(b, 16, 40)
        return first * 2, first + padded(c, 40, SIZE)

    inputs = parts(16, 24, 24)
    made = graph_of(function, *inputs)
    assert ops(made).count(aten.cat.default) == 1
    for given, expected in zip(made(*inputs), function(*inputs), strict=True):
        torch.testing.assert_close(given, expected, rtol=0, atol=0)


@pytest.mark.parametrize("nested", [True, False])
def test_a_joined_sum_is_a_term_or_a_gradient_of_another_one(nested):
    def function(a, b, c, d):
        first = padded(a, 0, 16, 32) + padded(b, 16, 32, 32)
        if nested:
            return padded(first, 0, 32) + padded(c, 32, SIZE)
        return first * 2, first + (padded(c, 0, 16, 32) + padded(d, 16, 32, 32))

    inputs = parts(16, 16, 32 if nested else 16, 16)
    made = graph_of(function, *inputs)
    assert ops(made).count(aten.cat.default) == 2
    for given, expected in zip(made(*inputs), function(*inputs), strict=True):
        torch.testing.assert_close(given, expected, rtol=0, atol=0)


@pytest.mark.parametrize("first", [True, False])
def test_a_sum_is_laid_out_as_its_first_term(first):
    def function(a, b, other):
        a, b = padded(a, 0, 32), padded(b, 32, 64)
        return other + a + b if first else a + other + b

    other = torch.randn(SIZE, 3).T
    inputs = [*parts(32, 32), other]
    made = graph_of(function, *inputs)
    assert aten.cat.default in ops(made)
    assert made(*inputs).stride() == function(*inputs).stride() == ((1, 3) if first else (SIZE, 1))
    assert torch.equal(made(*inputs), function(*inputs))


def test_images_that_lie_by_channels_keep_the_layout_of_their_sum():
    def function(a, b):
        return aten.slice_backward(a, [2, 8, 6, 6], 1, 0, 4, 1) + aten.slice_backward(
            b, [2, 8, 6, 6], 1, 4, 8, 1
        )

    images = [torch.randn(2, 4, 6, 6) for _ in range(2)]
    assert aten.cat.default in ops(graph_of(function, *images))
    turned = [image.to(memory_format=torch.channels_last) for image in images]
    made = graph_of(function, *turned)
    assert made(*turned).stride() == function(*turned).stride()


def heads(x, weight):
    """Queries, keys and values out of one product, as transformers have them."""
    q, k, v = (x @ weight)[:, :16], (x @ weight)[:, 16:32], (x @ weight)[:, 32:]
    return ((q * k.sin()).softmax(1) * v.exp()).sum()


def penalty(x, weight):
    mixed = x @ weight
    energy = (mixed[:, :16].sin() * mixed[:, 16:32] * mixed[:, 32:].cos()).sum()
    (force,) = torch.autograd.grad(energy, x, create_graph=True)
    return energy + force.square().sum()


@pytest.mark.parametrize("backend", ["eager", pytest.param("inductor", marks=pytest.mark.slow)])
@pytest.mark.parametrize("function", [heads, penalty])
def test_programs_with_slices_have_eagers_gradients(function, backend):
    """With open sizes too: the third call has another number of rows and no program of its own."""
    compiled = funcaot.compile(function, backend=backend)
    weight = torch.randn(8, 48, dtype=torch.float64, requires_grad=True)
    for rows in (3, 5, 7):
        x = torch.randn(rows, 8, dtype=torch.float64, requires_grad=True)
        given = torch.autograd.grad(compiled(x, weight), (x, weight))
        expected = torch.autograd.grad(function(x, weight), (x, weight))
        torch.testing.assert_close(given, expected)
    assert len(funcaot.report(compiled).entries) == 2
