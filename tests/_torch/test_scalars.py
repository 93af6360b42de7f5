"""Numbers in Inductor's kernels: for many elements, quotients of sizes, sums that are cast."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest
import sympy
import torch
from torch._inductor.codegen.triton import TritonPrinter
from torch.utils._sympy.functions import IntTrueDiv

import funcaot
from funcaot._torch.inductor.scalars import divided_exactly

sys.path.insert(0, str(Path(__file__).parent))
from generated_code import lines_in_loops, run_for_code


def test_a_power_for_all_elements():
    def function(x, count):
        return x * (1 - 0.9 ** (count + 1)).sqrt()

    x, count = torch.randn(100), torch.tensor(3.0)
    result, code = run_for_code(lambda: funcaot.compile(function)(x, count))
    assert "std::pow" in code
    assert not lines_in_loops(code, "std::pow")
    torch.testing.assert_close(result, function(x, count))


def test_quotients_of_sizes_on_gpus(monkeypatch):
    """Triton divides whole numbers in float32; a product with one of float64 is no whole number."""
    rows = sympy.Symbol("ks0", integer=True, positive=True)
    quotient = IntTrueDiv(rows + 1, 3 * rows)
    monkeypatch.setattr(TritonPrinter, "_get_scalar_float_type", staticmethod(lambda: "tl.float64"))
    with divided_exactly():
        text = TritonPrinter().doprint(quotient - 1)
    computed = "(tl.full([], 1, tl.float64) * (ks0 + 1) / (3*ks0))"
    assert computed in text.replace("1 + ks0", "ks0 + 1")
    assert "float64" not in TritonPrinter().doprint(quotient)


@pytest.mark.parametrize("kind", ["constant", "sum", "element"])
def test_what_is_computed_where_it_is_used(kind):
    """A number that is known or cheap, and powers of elements."""

    def function(x, number):
        if kind == "constant":
            return x + torch.full((), 2.0)
        return x + (number + 1) if kind == "sum" else x**number

    x, number = torch.rand(100), torch.tensor(3.0)
    result, code = run_for_code(lambda: funcaot.compile(function)(x, number))
    assert "empty_strided_cpu(()," not in code
    torch.testing.assert_close(result, function(x, number))


def test_a_step_of_adam():
    results = []
    for compiled in (False, True):
        torch.manual_seed(0)
        model = torch.nn.Linear(20, 30)
        optimizer = torch.optim.Adam(model.parameters())
        x = torch.randn(8, 20)

        def step(x, model=model, optimizer=optimizer):
            loss = model(x).square().mean()
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            return loss.detach()

        if not compiled:
            losses = [step(x) for _ in range(4)]
        else:
            called = funcaot.compile(step)
            losses = [called(x)]

            def rest(called=called, x=x):
                return [called(x) for _ in range(3)]

            more, code = run_for_code(rest)
            losses += more
            assert "std::pow" in code
            assert not lines_in_loops(code, "std::pow")
        results.append((losses, [*model.parameters()]))
    torch.testing.assert_close(results[1], results[0])


@pytest.mark.parametrize("left_out", ["", "stored apart"])
def test_a_sum_that_two_results_cast(left_out):
    """Inductor declares the cast twice; without the patch, the graph runs op by op."""

    def function(x, weight):
        once, again = x.bfloat16(), x.to(torch.bfloat16)
        return once.sum(0), again.sum(0, keepdim=True), (once.float() * weight).sum(0)

    operands = torch.randn(16, 32), torch.randn(16, 32)
    with funcaot.config.patch(without_patches=left_out):
        found = funcaot.compile(function)(*operands)
    for one, other in zip(found, function(*operands), strict=True):
        torch.testing.assert_close(one, other, rtol=1e-2, atol=1e-2)
