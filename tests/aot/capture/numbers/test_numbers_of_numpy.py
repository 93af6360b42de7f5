"""Numbers of NumPy's that change from call to call, as schedules that NumPy makes give them."""

from __future__ import annotations

import math
import types
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch

import funcaot

X = torch.tensor([0.5, -1.25, 2.0])
SCHEDULES = {
    "float64": list(np.linspace(0.1, 0.9, 6)),
    "float32": list(np.linspace(0.1, 0.9, 6).astype(np.float32)),
    "int64": list(np.arange(2, 8)),
    "int32": list(np.arange(2, 8, dtype=np.int32)),
}
SPECIAL = [np.float64(value) for value in (0.5, 0.25, 0, -0.0, 1, math.nan, math.inf, 1e300, 0.75)]


def computed(x: torch.Tensor, n: Any) -> Any:
    """Tensors, and numbers that NumPy computes."""
    return x * n + np.exp(-n), n * 2, 1 - n, n**2, np.sqrt(n) * x, min(n, n * 2)


def asked(x: torch.Tensor, n: Any) -> Any:
    """What kind of number it is, whatever it is."""
    kinds = type(n), isinstance(n, np.floating), isinstance(n, float), str(n.dtype), n.shape
    return x * n, str(kinds), n.item()


def made(x: torch.Tensor, n: Any) -> torch.Tensor:
    """A tensor whose dtype is that of the number."""
    return x * torch.as_tensor(n)


class Reversed(torch.autograd.Function):
    """Gradient reversal, with what it computes of the number."""

    @staticmethod
    def forward(ctx: Any, x: torch.Tensor, n: Any) -> torch.Tensor:
        ctx.n, ctx.inverse, ctx.is_of_numpy = n, 1 / n, isinstance(n, np.floating)
        ctx.decay = 2.0 / (1.0 + np.exp(-10.0 * n)) - 1.0
        return x.sin()

    @staticmethod
    def backward(ctx: Any, gradient: torch.Tensor) -> Any:
        found = -gradient * ctx.n + ctx.inverse * ctx.decay
        return (found if ctx.is_of_numpy else found * 2), None


def same(first: Any, second: Any) -> bool:
    """Whether two results are equal, with their classes."""
    if isinstance(first, tuple):
        return len(first) == len(second) and all(map(same, first, second))
    if isinstance(first, torch.Tensor):
        return first.dtype is second.dtype and torch.allclose(
            first, second, rtol=1e-6, atol=0.0, equal_nan=True
        )
    return type(first) is type(second) and repr(first) == repr(second)


def check(function: Callable[..., Any], values: list[Any], programs: int) -> None:
    """Compare a function of a tensor and a number with what eager gives."""
    compiled = funcaot.compile(function, backend="eager")
    with np.errstate(all="ignore"):
        for value in values:
            assert same(compiled(X, value), function(X, value)), value
    assert len(funcaot.report(compiled).entries) <= programs


@pytest.mark.parametrize("kind", SCHEDULES)
@pytest.mark.parametrize("function", [computed, asked], ids=lambda function: function.__name__)
def test_a_schedule_takes_two_programs(function: Callable[..., Any], kind: str) -> None:
    values = SCHEDULES[kind]
    check(function, values, 2)


def test_numpy_divides_by_zero_and_knows_no_overflow() -> None:
    check(lambda x, n: (x * n, 1 / n, np.exp(n), np.log(n)), SPECIAL, 3)


def test_a_tensor_of_such_a_number_has_its_dtype() -> None:
    check(made, SCHEDULES["float64"] + SCHEDULES["float32"] + SCHEDULES["int64"], 18)


def test_torch_refuses_to_assign_a_narrow_one() -> None:
    def assign(x: torch.Tensor, n: Any) -> torch.Tensor:
        y = x.sin()
        y[0] = n
        return y

    check(assign, SCHEDULES["float64"], 2)
    compiled = funcaot.compile(assign, backend="eager")
    for value in SCHEDULES["float32"][:3]:
        with pytest.raises(TypeError, match=r"can't assign a numpy\.float32"):
            compiled(X, value)


def test_kinds_of_numbers_have_programs_of_their_own() -> None:
    one, other = np.float64(0.5), np.float32(0.25)
    values = [one, 0.5, other, 1, True, np.int64(3), np.bool_(True), np.float64(0.1), 0.3, one]
    check(lambda x, n: (x * n, n), values, 9)


@pytest.mark.parametrize("of_class", [False, True], ids=["attribute", "class"])
def test_a_number_that_a_function_reads(of_class: bool) -> None:
    settings: Any = type("Settings", (), {"n": None}) if of_class else types.SimpleNamespace(n=None)

    def function(x: torch.Tensor) -> Any:
        return computed(x, settings.n)

    compiled = funcaot.compile(function, backend="eager")
    for value in SCHEDULES["float64"]:
        settings.n = value
        assert same(compiled(X), function(X))
    assert len(funcaot.report(compiled).entries) == 2


@pytest.mark.parametrize("where", ["argument", "attribute"])
@pytest.mark.parametrize("values", [SCHEDULES["float64"], SPECIAL], ids=["schedule", "special"])
def test_a_function_is_given_one(values: list[Any], where: str) -> None:
    settings = types.SimpleNamespace(n=None)

    def gradient(of: Callable[..., Any], n: Any) -> torch.Tensor:
        x = X.clone().requires_grad_()
        settings.n = n
        (of(x, n) if where == "argument" else of(x)).sum().backward()
        assert x.grad is not None
        return x.grad

    def of_argument(x: torch.Tensor, n: Any) -> torch.Tensor:
        return Reversed.apply(x, n)

    def of_attribute(x: torch.Tensor) -> torch.Tensor:
        return Reversed.apply(x, settings.n)

    function = of_argument if where == "argument" else of_attribute

    compiled = funcaot.compile(function, backend="eager")
    with np.errstate(all="ignore"):
        for value in values:
            assert same(gradient(compiled, value), gradient(function, value)), value
    if values is SCHEDULES["float64"]:
        assert len(funcaot.report(compiled).entries) == 2


@pytest.mark.slow
def test_on_inductor() -> None:
    compiled = funcaot.compile(computed)
    for value in SCHEDULES["float64"][:3]:
        assert same(compiled(X, value), computed(X, value))
    assert len(funcaot.report(compiled).entries) == 2
