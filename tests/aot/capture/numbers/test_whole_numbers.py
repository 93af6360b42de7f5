"""Whole numbers among the arguments that a function computes with: any value, few programs."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import pytest
import torch

import funcaot

X = torch.tensor([0.5, -1.25, 2.0])
SMALL = (2, 0, 1, -1, 3, -2, 5, -5, 4, 0, 1)
COMPUTED: dict[str, Callable[[torch.Tensor, int], Any]] = {
    "product": lambda x, n: x * n,
    "quotient": lambda x, n: x / n,
    "in Python": lambda x, n: x * (n * 2 + 1) + 0.9**n,
    "returned": lambda x, n: (x.sin(), n, n + 1, n / 2),
    "alpha": lambda x, n: torch.add(x, x.sin(), alpha=n),
    "limit": lambda x, n: x.clamp(min=n),
    "filled": lambda x, n: torch.full_like(x, n) * x,
    "half": lambda x, n: x.half() * n,
    "float": lambda x, n: x * float(n),
    "compared": lambda x, n: torch.where(x > n, x, x * 0.5),
    "kind": lambda x, n: x * 2 if isinstance(n, int) and not isinstance(n, float) else x,
}
USED: dict[str, Callable[[torch.Tensor, int], Any]] = {
    "whole tensor": lambda x, n: torch.arange(3) * n + n,
    "branch": lambda x, n: x.sin() if n > 3 else x.cos() * n,
    "truth": lambda x, n: x.sin() if n else x.cos(),
    "range": lambda x, n: sum((x * i for i in range(n)), x),
    "size": lambda x, n: x[:n],
    "roll": lambda x, n: torch.roll(x, n, 0),
    "index": lambda x, n: x[n % 3],
    "bits": lambda x, n: torch.arange(3) & n,
    "power": lambda x, n: x.abs() ** n,
    "key": lambda x, n: x * {1: 5.0}.get(n, 7.0),
    "text": lambda x, n: x * len(f"{n:+d}"),
}


def _check(function: Callable[..., Any], values: Sequence[int]) -> Any:
    compiled = funcaot.compile(function, backend="eager")
    for value in values:
        found, expected = compiled(X, value), function(X, value)
        torch.testing.assert_close(found, expected, rtol=1e-6, atol=0, equal_nan=True)
        if isinstance(expected, tuple):
            assert list(map(type, found)) == list(map(type, expected))
    return compiled


@pytest.mark.parametrize("name", COMPUTED)
def test_few_programs_serve_all_values(name: str) -> None:
    assert len(_check(COMPUTED[name], SMALL).entries) <= 4


@pytest.mark.parametrize("name", USED)
def test_what_needs_the_number_has_its_own(name: str) -> None:
    _check(USED[name], SMALL)


def test_sizes_stay_open_beside_special_ones() -> None:
    compiled = _check(lambda x, n: x[:n] + 1, (2, 0, 1, -1, 3, -2))
    known = len(compiled.entries)
    for value in (4, 5, 6, 7):
        torch.testing.assert_close(compiled(torch.ones(9), value), torch.ones(value) * 2)
    assert len(compiled.entries) <= known + 2


@pytest.mark.parametrize("value", [2**31, 2**53 - 1, 2**53 + 1, -(2**53) - 1, 2**62, -(2**63)])
def test_large_numbers(value: int) -> None:
    _check(lambda x, n: (x * n, torch.arange(3) + n, n + 1), (-1, -2, value, 3))


def test_equal_numbers_of_other_kinds_are_told_apart() -> None:
    values: Any = (1, 1.0, True, 2, 2.5, False, 0, 0.0, -0.0, 1, 1.0, True)
    _check(lambda x, n: (torch.arange(3) * n, x * n, n), values)


@pytest.mark.slow
@pytest.mark.parametrize("name", COMPUTED)
def test_the_same_on_inductor(name: str) -> None:
    compiled = funcaot.compile(COMPUTED[name])
    for value in SMALL:
        torch.testing.assert_close(compiled(X, value), COMPUTED[name](X, value), equal_nan=True)
    assert len(compiled.entries) <= 4


@pytest.mark.parametrize("operation", ["floor_divide", "remainder", "fmod", "__mod__", "rpow"])
def test_quotients_and_remainders_by_floats(operation: str) -> None:
    def function(x: torch.Tensor, n: float) -> Any:
        if operation == "rpow":
            return n**x
        return getattr(torch.Tensor, operation)(x, n)

    compiled = funcaot.compile(function, backend="eager")
    for value in (0.5, 0.3, -0.7, 2.0, 0.0, -0.0, float("inf"), 1e-310, 1e39):
        results = []
        for each in (compiled, function):
            x = X.clone().requires_grad_(operation != "floor_divide")
            result = each(x, value)
            results.append(
                (result, *(torch.autograd.grad(result.sum(), x) if x.requires_grad else ()))
            )
        torch.testing.assert_close(*results, rtol=0, atol=0, equal_nan=True)
        for found, expected in zip(*results, strict=True):
            assert torch.equal(found.signbit(), expected.signbit())
    assert len(compiled.entries) <= (5 if operation == "rpow" else 2)
