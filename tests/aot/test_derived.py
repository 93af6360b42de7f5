"""Derived programs are kept under their parent, bounded, and shown as a tree."""

import sys
from pathlib import Path

import torch
from torch import func

import funcaot
from funcaot.aot.derived import Derived

sys.path.insert(0, str(Path(__file__).parent))
import orders_cases as cases


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
