"""Derived programs are kept under their parent, bounded, and shown as a tree."""

import pytest
import torch
from torch import func
from torch.testing import assert_close

import funcaot
from funcaot.aot.calls.call import SegmentFunction
from funcaot.aot.graph.lru import Derived
from tests.aot.segment import orders_cases as cases

pytestmark = pytest.mark.usefixtures("by_level")


def test_what_was_used_least_recently_is_dropped():
    with funcaot.config.patch(derived_programs=2):
        kept = Derived()
        kept["a"], kept["b"] = 1, 2
        assert kept.get("a") == 1
        kept["c"] = 3
        assert list(kept) == ["a", "c"]
        assert kept.get("b") is None


def test_batch_sizes_are_bounded_and_stay_right():
    compiled = cases.compiled(lambda x: x.sin() * x)
    with funcaot.config.patch(derived_programs=3):
        for size in (1, 2, 3, 4, 5, 2, 1):
            x = torch.randn(size, 4)
            torch.testing.assert_close(func.vmap(compiled)(x), x.sin() * x)
    (entry,) = funcaot.report(compiled).entries
    assert sum(len(graph.derived) for graph in entry.graphs) <= 3


def test_backwards_are_bounded_and_stay_right():
    compiled = cases.compiled(lambda x: x.sin() * x)
    with funcaot.config.patch(derived_programs=2):
        for stride in (1, 2, 3, 4, 1):
            x = torch.randn(4, requires_grad=True)
            v = torch.randn(4 * stride)[::stride]
            (gradient,) = torch.autograd.grad(compiled(x), x, v)
            torch.testing.assert_close(gradient, v * (x.sin() + x * x.cos()).detach())
    (entry,) = funcaot.report(compiled).entries
    assert len(entry.backwards) <= 2


def test_the_report_shows_a_tree():
    compiled = cases.compiled(lambda x: (x.sin() * x).sum())
    x = torch.randn(4)
    func.vmap(func.grad(compiled))(torch.randn(3, 4))
    func.jvp(func.grad(compiled), (x,), (x,))
    lines = str(funcaot.report(compiled)).splitlines()
    backward = next(line for line in lines if "backward for" in line)
    below = lines[lines.index(backward) + 1]
    assert len(below) - len(below.lstrip()) > len(backward) - len(backward.lstrip())
    assert any("vmap(" in line for line in lines)
    assert any("primal and tangent" in line for line in lines)


def test_under_vmap_alone_no_function_is_batched(monkeypatch):
    """Nothing is differentiated, so the batched graph is all that runs."""

    def vector(x, w):
        return (x @ w).tanh()

    compiled = cases.compiled(vector)
    x, w = torch.randn(5, 3, dtype=torch.float64), torch.randn(3, 3, dtype=torch.float64)
    expected = func.vmap(vector, (0, None))(x, w)
    with monkeypatch.context() as patched:
        patched.setattr("funcaot.transforms.vmap.vmapped", None)
        assert_close(func.vmap(compiled, (0, None))(x, w), expected)
        assert_close(
            func.vmap(func.vmap(compiled, (0, None)), (None, 0))(x, w.expand(2, 3, 3)),
            expected.expand(2, 5, 3),
        )
        with torch.no_grad():
            assert_close(func.vmap(compiled, (0, None))(x, w.clone().requires_grad_()), expected)
    w.requires_grad_()
    batched = func.vmap(compiled, (0, None))(x, w)
    assert_close(torch.autograd.grad(batched.sum(), w), torch.autograd.grad(vector(x, w).sum(), w))


def nodes_made(monkeypatch, program, *operands):
    """The orders of the segments that autograd nodes were made for."""
    made = []
    setup = SegmentFunction.setup_context

    def counted(self, ctx, operands, outputs):
        made.append(self.segment.order)
        setup(self, ctx, operands, outputs)

    with monkeypatch.context() as patched:
        patched.setattr(SegmentFunction, "setup_context", counted)
        # The class keeps the rules that it was made with.
        result = program(cases.compiled(lambda x: (x.sin() * x).sum()))(*operands)
    return made, result


def test_the_backward_of_a_gradient_that_nobody_differentiates_makes_no_node(monkeypatch):
    x = torch.linspace(-1, 1, 6, dtype=torch.float64).view(2, 3)
    expected = x.cos() * x + x.sin()
    made, found = nodes_made(monkeypatch, func.grad, x)
    assert made == [0]
    assert_close(found, expected)
    made, found = nodes_made(monkeypatch, lambda c: func.vmap(func.grad_and_value(c)), x)
    assert made == [0]
    assert_close(found[0], expected)


def test_the_backward_of_a_gradient_that_is_differentiated_makes_one(monkeypatch):
    x = torch.linspace(-1, 1, 3, dtype=torch.float64)
    second = 2 * x.cos() - x * x.sin()
    made, found = nodes_made(monkeypatch, lambda c: func.grad(lambda x: func.grad(c)(x).sum()), x)
    assert_close(found, second)
    assert sorted(made) == [0, 0, 1]
    for create_graph in (True, False):

        def inner(c, create_graph=create_graph):
            return lambda x: torch.autograd.grad(c(x), x, create_graph=create_graph)[0].sum()

        made, found = nodes_made(monkeypatch, lambda c: func.grad(inner(c)), x)
        assert_close(found, second if create_graph else torch.zeros_like(x))
    x.requires_grad_()
    _, found = nodes_made(monkeypatch, func.grad, x)
    assert_close(torch.autograd.grad(found.sum(), x)[0], second)
