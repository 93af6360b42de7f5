"""A number that a Function is given changes from call to call: one program serves all values."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from torch.func import grad, vmap

import funcaot

VALUES = (0.1, 0.2, 0.7, 0.5, -0.0, 1.0)


class Reversed(torch.autograd.Function):
    """Gradient reversal."""

    @staticmethod
    def forward(ctx: Any, x: torch.Tensor, strength: float) -> torch.Tensor:
        ctx.strength = strength
        return x.view_as(x)

    @staticmethod
    def backward(ctx: Any, gradient: torch.Tensor) -> Any:
        return gradient.neg() * ctx.strength, None


class Scaled(torch.autograd.Function):
    """It keeps numbers in containers, and what it computes of them."""

    generate_vmap_rule = True

    @staticmethod
    def forward(x: torch.Tensor, scale: float, shift: float) -> torch.Tensor:
        return x.sin() * scale + shift

    @staticmethod
    def setup_context(ctx: Any, inputs: Any, output: Any) -> None:
        x, scale, shift = inputs
        ctx.save_for_backward(x)
        ctx.kept = {"scale": scale, "half": [scale * 0.5, (3, shift)]}

    @staticmethod
    def backward(ctx: Any, gradient: torch.Tensor) -> Any:
        (x,) = ctx.saved_tensors
        half = ctx.kept["half"][0] + ctx.kept["half"][1][1]
        return gradient * x.cos() * (ctx.kept["scale"] + half), None, None


class Branching(torch.autograd.Function):
    """It asks about the number in backward only, after the capture is over."""

    @staticmethod
    def forward(ctx: Any, x: torch.Tensor, strength: float) -> torch.Tensor:
        ctx.strength = strength
        return x.sin()

    @staticmethod
    def backward(ctx: Any, gradient: torch.Tensor) -> Any:
        if ctx.strength > 0.4:
            return gradient * ctx.strength, None
        return gradient * float(f"{ctx.strength:.1f}") * 3, None


class Clipped(torch.autograd.Function):
    """Two numbers, one of which may be computed of the other."""

    @staticmethod
    def forward(ctx: Any, x: torch.Tensor, low: float, high: float) -> torch.Tensor:
        ctx.save_for_backward(x)
        ctx.limits = low, high
        return torch.clamp(x, low, high)

    @staticmethod
    def backward(ctx: Any, gradient: torch.Tensor) -> Any:
        (x,) = ctx.saved_tensors
        low, high = ctx.limits
        ctx.width = high - low
        del ctx.width
        return gradient * ((x >= low) & (x <= high)).to(gradient.dtype), None, None


class Computing(torch.autograd.Function):
    """A forward with ctx that keeps what it computes of the number, and the number itself."""

    @staticmethod
    def forward(ctx: Any, x: torch.Tensor, scale: float) -> torch.Tensor:
        ctx.third = scale / 3
        ctx.both = [scale, scale * 2]
        return x * scale

    @staticmethod
    def backward(ctx: Any, gradient: torch.Tensor) -> Any:
        scale, double = ctx.both
        return gradient * (scale - 3 * double) * ctx.third, None


class InNumPy(torch.autograd.Function):
    """It runs on real values, and is given Python's own number."""

    @staticmethod
    def forward(ctx: Any, x: torch.Tensor, scale: float) -> torch.Tensor:
        assert type(scale) is float
        ctx.scale = scale
        return torch.from_numpy(x.detach().numpy() * scale)

    @staticmethod
    def backward(ctx: Any, gradient: torch.Tensor) -> Any:
        return gradient * ctx.scale, None


class InPlace(InNumPy):
    """The same in torch, in place."""

    @staticmethod
    def forward(ctx: Any, x: torch.Tensor, scale: float) -> torch.Tensor:
        ctx.mark_dirty(x)
        ctx.scale = scale
        return x.mul_(scale)


class Nested(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: torch.Tensor, strength: float) -> torch.Tensor:
        ctx.strength = strength
        return Reversed.apply(x, strength * 2)

    @staticmethod
    def backward(ctx: Any, gradient: torch.Tensor) -> Any:
        return Reversed.apply(gradient, ctx.strength) * ctx.strength, None


CASES: dict[str, Callable[[torch.Tensor, float], torch.Tensor]] = {
    "reversed": lambda x, n: Reversed.apply(x.sin(), n).cos() * n,
    "scaled": lambda x, n: Scaled.apply(x, n, n * 0.5),
    "branching": lambda x, n: Branching.apply(x, n),
    "clipped": lambda x, n: Clipped.apply(x * x, -n, n),
    "computing": lambda x, n: Computing.apply(x.sin(), n),
    "in numpy": lambda x, n: InNumPy.apply(x.sin(), n),
    "in place": lambda x, n: InPlace.apply(x.sin(), n).cos(),
    "nested": lambda x, n: Nested.apply(x.sin(), n).cos(),
    "grad": lambda x, n: grad(lambda y: Scaled.apply(y, n, 0.5).sum())(x),
    "vmap": lambda x, n: vmap(lambda y: Scaled.apply(y, n, 0.5))(x),
    "vmap of grad": lambda x, n: vmap(grad(lambda y: Scaled.apply(y, n, 0.5)))(x),
}


def _derivatives(function: Callable[..., Any], *arguments: Any) -> list[Any]:
    x = torch.tensor([0.5, -1.25, 2.0], requires_grad=True)
    value = function(x, *arguments)
    (first,) = torch.autograd.grad(value.sin().sum(), x, create_graph=True)
    return [value, first, *torch.autograd.grad(first.cos().sum(), x)]


@pytest.mark.parametrize("name", CASES)
@pytest.mark.parametrize("where", ["argument", "attribute"])
def test_two_programs_serve_all_values(name: str, where: str) -> None:
    class Settings:
        number = 0.0

    settings, case = Settings(), CASES[name]

    def of_attribute(x: torch.Tensor) -> torch.Tensor:
        return case(x, settings.number)

    function = case if where == "argument" else of_attribute
    compiled = funcaot.compile(function, backend="eager")
    for value in VALUES:
        settings.number = value
        given = (value,) if where == "argument" else ()
        torch.testing.assert_close(_derivatives(compiled, *given), _derivatives(function, *given))
    assert len(compiled.entries) <= 2


@pytest.mark.slow
@pytest.mark.parametrize("name", CASES)
def test_the_same_on_inductor(name: str) -> None:
    compiled = funcaot.compile(CASES[name])
    for value in VALUES:
        found, expected = _derivatives(compiled, value), _derivatives(CASES[name], value)
        torch.testing.assert_close(found, expected, rtol=1e-4, atol=1e-5)
    assert len(compiled.entries) <= 2


MATHEMATICS: dict[str, Callable[[float], float]] = {
    "exp": lambda n: 2.0 / (1.0 + math.exp(-10 * n)) - 1.0,
    "log": lambda n: math.log(n) + math.log1p(n),
    "sqrt": lambda n: math.sqrt(n) / 2,
    "cos": lambda n: 0.5 * (1 + math.cos(math.pi * n)),
    "asin": lambda n: math.asin(n) + math.tanh(n),
    "square": lambda n: n**2,
    "root": lambda n: abs(1 - n) ** 0.9,
    "decay": lambda n: 0.99**n,
    "bits": lambda n: 2**n - 1,
    "numpy": lambda n: np.exp(-n),
}


@pytest.mark.parametrize("name", MATHEMATICS)
def test_a_forward_computes_with_mathematics(name: str) -> None:
    """Also for the values for which Python raises, or nothing finite comes out."""

    class Weighted(torch.autograd.Function):
        @staticmethod
        def forward(ctx: Any, x: torch.Tensor, n: float) -> torch.Tensor:
            ctx.weight = MATHEMATICS[name](n)
            return x * ctx.weight

        @staticmethod
        def backward(ctx: Any, gradient: torch.Tensor) -> Any:
            return gradient * ctx.weight, None

    def outcome(function: Callable[..., Any], n: float) -> Any:
        x = torch.tensor([0.5, -1.25], requires_grad=True)
        try:
            value = function(x, n)
        except (ValueError, OverflowError) as error:
            return str(error)
        return value.detach(), *torch.autograd.grad(value.sum(), x)

    def function(x: torch.Tensor, n: float) -> torch.Tensor:
        return Weighted.apply(x, n)

    compiled = funcaot.compile(function, backend="eager")
    for n in (0.1, 0.2, 0.7, 0.5, 0.9):
        torch.testing.assert_close(outcome(compiled, n), outcome(function, n), rtol=1e-6, atol=0.0)
    assert len(compiled.entries) == 2
    with np.errstate(all="ignore"):
        for n in (0.0, -0.5, 2.0, -1e4, 1e4, math.nan, math.inf, -math.inf, 1e300):
            found, expected = outcome(compiled, n), outcome(function, n)
            if isinstance(expected, str):
                assert found == expected
            else:
                torch.testing.assert_close(found, expected, rtol=1e-6, atol=0.0, equal_nan=True)


def test_a_branch_in_forward_has_a_program_for_each_answer() -> None:
    class Bent(torch.autograd.Function):
        @staticmethod
        def forward(ctx: Any, x: torch.Tensor, limit: float) -> torch.Tensor:
            ctx.factor = 2.0 if limit > 0.4 else limit
            return x * ctx.factor

        @staticmethod
        def backward(ctx: Any, gradient: torch.Tensor) -> Any:
            return gradient * ctx.factor, None

    def function(x: torch.Tensor, limit: float) -> torch.Tensor:
        return Bent.apply(x.sin(), limit)

    compiled = funcaot.compile(function, backend="eager")
    for value in (0.1, 0.2, 0.7, 0.5, 0.3, 0.9):
        torch.testing.assert_close(_derivatives(compiled, value), _derivatives(function, value))
    assert len(compiled.entries) <= 3


def test_what_a_function_on_real_values_computes_of_a_number_has_a_program_each() -> None:
    class Doubled(torch.autograd.Function):
        @staticmethod
        def forward(ctx: Any, x: torch.Tensor, scale: float) -> torch.Tensor:
            ctx.scale = scale * 2
            return torch.from_numpy(x.detach().numpy() * ctx.scale)

        @staticmethod
        def backward(ctx: Any, gradient: torch.Tensor) -> Any:
            return gradient * ctx.scale, None

    def function(x: torch.Tensor, scale: float) -> torch.Tensor:
        return Doubled.apply(x.sin(), scale)

    compiled = funcaot.compile(function, backend="eager")
    for value in (0.1, 0.2, 0.7):
        torch.testing.assert_close(_derivatives(compiled, value), _derivatives(function, value))


def test_a_keyword_of_forward_is_that_of_each_call() -> None:
    class Scaling(funcaot.Function):
        @staticmethod
        def forward(x: torch.Tensor, *, scale: float) -> torch.Tensor:
            return x * scale

        @staticmethod
        def setup_context(ctx: Any, inputs: Any, output: Any) -> None:
            pass

    compiled = funcaot.compile(lambda x, n: Scaling.apply(x, scale=n), backend="eager")
    x = torch.ones(3)
    for _ in range(2):
        for value in (0.1, 0.2, 0.3):
            torch.testing.assert_close(compiled(x, value), x * value)
        compiled.clear()
