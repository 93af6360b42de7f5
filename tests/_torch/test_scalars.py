"""What Inductor computes once where many elements need the same number."""

from __future__ import annotations

import pytest
import torch
from torch._inductor.utils import run_and_get_code

import funcaot


def code_of(function, *inputs):
    """The result of a compiled function, and the C++ that Inductor generated."""
    with torch._inductor.config.patch(force_disable_caches=True):
        result, codes = run_and_get_code(funcaot.compile(function), *inputs)
    return result, "\n".join(codes)


def in_loops(code, op):
    """Whether a line with an op is inside of a loop of the C++."""
    loops = []
    for line in code.splitlines():
        indent = len(line) - len(line.lstrip())
        if line.strip() == "}" and loops and loops[-1] == indent:
            loops.pop()
        elif line.lstrip().startswith("for("):
            loops.append(indent)
        elif op in line and loops:
            return True
    return False


def test_a_power_for_all_elements():
    def function(x, count):
        return x * (1 - 0.9 ** (count + 1)).sqrt()

    x, count = torch.randn(100), torch.tensor(3.0)
    result, code = code_of(function, x, count)
    assert "std::pow" in code
    assert not in_loops(code, "std::pow")
    torch.testing.assert_close(result, function(x, count))


@pytest.mark.parametrize("kind", ["constant", "sum", "element"])
def test_what_is_computed_where_it_is_used(kind):
    """A number that is known or cheap, and powers of elements."""

    def function(x, number):
        if kind == "constant":
            return x + torch.full((), 2.0)
        return x + (number + 1) if kind == "sum" else x**number

    x, number = torch.rand(100), torch.tensor(3.0)
    result, code = code_of(function, x, number)
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

            with torch._inductor.config.patch(force_disable_caches=True):
                more, codes = run_and_get_code(rest)
            losses += more
            assert any("std::pow" in code for code in codes)
            assert not any(in_loops(code, "std::pow") for code in codes)
        results.append((losses, [*model.parameters()]))
    torch.testing.assert_close(results[1], results[0])
