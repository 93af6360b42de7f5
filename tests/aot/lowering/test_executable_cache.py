"""Backwards that share executables, and layouts beyond the limit."""

import warnings

import pytest
import torch
from torch.testing import assert_close

import funcaot
from funcaot.errors import RecompileWarning


def counting():
    """A backend that counts what it is given."""
    made = []

    def compile_graph(module, inputs):
        made.append(module)
        return module.forward

    return compile_graph, made


def layouts(shape):
    """Tangents of one shape in different layouts, contiguous first."""
    contiguous = torch.randn(shape)
    yield contiguous
    yield contiguous.t().contiguous().t()
    yield torch.randn(shape[0], 1).expand(shape)
    yield torch.randn(2 * shape[0], shape[1])[::2]
    yield torch.randn(()).expand(shape)


def f(x, w):
    return (x @ w).sin() * 2


def check(function, compiled, tangent, inputs, **options):
    mine = torch.autograd.grad(compiled(*inputs), inputs, tangent, **options)
    theirs = torch.autograd.grad(function(*inputs), inputs, tangent, **options)
    for a, b in zip(mine, theirs, strict=True):
        assert_close(a, b)
        assert a.stride() == b.stride()


def inputs():
    return torch.randn(4, 4, requires_grad=True), torch.randn(4, 4, requires_grad=True)


def test_layouts_of_tangents_share_an_executable():
    backend, made = counting()
    compiled, given = funcaot.compile(f, backend=backend), inputs()
    for tangent in layouts((4, 4)):
        for _ in range(2):
            check(f, compiled, tangent, given)
    report = funcaot.report(compiled)
    assert report.backward_traces == 5
    assert report.graphs_shared == 4
    assert len(made) == report.graphs_compiled == 2
    assert "shared" in str(report)


def test_an_expanded_tangent_is_no_layout_for_others():
    backend, made = counting()
    compiled, given = funcaot.compile(f, backend=backend), inputs()
    check(f, compiled, torch.ones(()).expand(4, 4), given)
    check(f, compiled, torch.randn(4, 4), given)
    check(f, compiled, torch.randn(4, 4).t(), given)
    assert len(made) == 3
    assert funcaot.report(compiled).graphs_shared == 1


class OnLayout(torch.autograd.Function):
    """A rule that looks at its grad_output's strides."""

    @staticmethod
    def forward(ctx, x):
        return x * 1

    @staticmethod
    def backward(ctx, gradient):
        return gradient * 2 if gradient.is_contiguous() else gradient * 3


def test_a_rule_that_looks_at_strides_keeps_its_graphs():
    backend, made = counting()
    compiled, (x, _) = funcaot.compile(OnLayout.apply, backend=backend), inputs()
    for tangent in layouts((4, 4)):
        check(OnLayout.apply, compiled, tangent, (x,))
    # One for contiguous tangents, one that the other layouts share, or each its own where the
    # gradient's strides follow the tangent's.
    assert 3 <= len(made) <= 6


def test_as_strided_means_other_elements_for_other_strides():
    class Second(torch.autograd.Function):
        @staticmethod
        def forward(ctx, x):
            return x * 1

        @staticmethod
        def backward(ctx, gradient):
            return gradient.as_strided((4, 4), (4, 1)) * 1

    backend, made = counting()
    compiled, (x, _) = funcaot.compile(Second.apply, backend=backend), inputs()
    tangent = torch.randn(4, 4)
    check(Second.apply, compiled, tangent, (x,))
    check(Second.apply, compiled, tangent.t(), (x,))
    assert len(made) == 3


def test_create_graph_shares_with_the_plain_backward():
    def g(x, w):
        return x @ w

    backend, made = counting()
    compiled, given, tangent = funcaot.compile(g, backend=backend), inputs(), torch.randn(4, 4)
    check(g, compiled, tangent, given)
    check(g, compiled, tangent, given, create_graph=True)
    assert len(made) == 2
    assert funcaot.report(compiled).graphs_shared == 1


def test_layouts_beyond_the_limit_run_the_traced_graph():
    def g(x):
        return x * 2  # the gradient's strides follow the tangent's, so nothing is shared

    backend, made = counting()
    compiled, x = funcaot.compile(g, backend=backend), torch.randn(2, 3, 4, requires_grad=True)
    orders = [(0, 1, 2), (0, 2, 1), (1, 0, 2), (1, 2, 0), (2, 0, 1)]
    with funcaot.config.patch(backward_layouts=2), warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        for order in orders:
            back = [order.index(dim) for dim in range(3)]
            tangent = torch.randn([x.shape[dim] for dim in order]).permute(back)
            check(g, compiled, tangent, (x,))
    assert len(made) == 1 + 2
    (warning,) = [item for item in caught if item.category is RecompileWarning]
    assert "The backward of g was compiled for 2 layouts" in str(warning.message)


@pytest.mark.slow
def test_inductor_shares():
    compiled, given = funcaot.compile(f), inputs()
    for tangent in layouts((4, 4)):
        check(f, compiled, tangent, given)
    assert funcaot.report(compiled).graphs_shared == 4


def test_sparse_gradients_of_other_sizes():
    """How many elements one has is only known once it is computed."""
    layer = torch.nn.Embedding(20, 4, sparse=True)
    compiled = funcaot.compile(lambda rows: layer(rows).square().sum(), backend=counting()[0])
    for rows in (4, 4, 5, 7):
        indices, grads = torch.arange(rows) % 6, []
        for call in (compiled, lambda rows: layer(rows).square().sum()):
            layer.zero_grad()
            call(indices).backward()
            grads.append(layer.weight.grad)
        assert grads[0].is_sparse
        assert_close(grads[0].to_dense(), grads[1].to_dense())
