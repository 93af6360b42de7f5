"""A number changes from call to call of a compiled function under a transform outside."""

from __future__ import annotations

import types
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch.func import grad, jacrev, vmap

import funcaot

X = torch.tensor([[0.5, -1.25, 2.0], [0.1, 0.2, 0.3]])
VALUES = (0.1, 0.2, 0.7, 0.5, 0.0, 1.0, -3.5)


class Scaled(torch.autograd.Function):
    generate_vmap_rule = True

    @staticmethod
    def forward(x: torch.Tensor, scale: float) -> torch.Tensor:
        return x.sin() * scale

    @staticmethod
    def setup_context(ctx: Any, inputs: Any, output: Any) -> None:
        ctx.save_for_backward(inputs[0])
        ctx.scale = inputs[1]

    @staticmethod
    def backward(ctx: Any, gradient: torch.Tensor) -> Any:
        return gradient * ctx.saved_tensors[0].cos() * ctx.scale, None


def mixed(x: torch.Tensor, n: float) -> torch.Tensor:
    return n * x.sin() + (1 - n) * Scaled.apply(x, n).cos() * 0.9**n


def one(function: Callable[..., Any]) -> torch.Tensor:
    return vmap(function)(X)


def differentiated(function: Callable[..., Any]) -> torch.Tensor:
    x = X.clone().requires_grad_()
    return torch.autograd.grad(vmap(function)(x).sin().sum(), x)[0]


TRANSFORMS: dict[str, Callable[[Callable[..., Any]], torch.Tensor]] = {
    "vmap": one,
    "grad": lambda f: grad(lambda x: f(x).sum())(X),
    "grad of grad": lambda f: grad(lambda x: grad(lambda y: f(y).sum())(x).sin().sum())(X),
    "vmap of grad": lambda f: vmap(grad(lambda x: f(x).sum()))(X),
    "jacrev": lambda f: jacrev(lambda x: f(x))(X),
    "differentiated": differentiated,
}


@pytest.mark.parametrize("name", TRANSFORMS)
@pytest.mark.parametrize("where", ["argument", "attribute"])
def test_two_programs_serve_all_values(name: str, where: str) -> None:
    settings, transform = types.SimpleNamespace(n=0.0), TRANSFORMS[name]

    def of_attribute(x: torch.Tensor) -> torch.Tensor:
        return mixed(x, settings.n)

    function: Callable[..., Any] = mixed if where == "argument" else of_attribute
    compiled = funcaot.compile(function, backend="eager")

    def called(x: torch.Tensor) -> torch.Tensor:
        return compiled(x, settings.n) if where == "argument" else compiled(x)

    for value in VALUES:
        settings.n = value
        torch.testing.assert_close(transform(called), transform(of_attribute))
    assert len(funcaot.report(compiled).entries) == 2


def test_a_whole_number_that_is_computed_with() -> None:
    compiled = funcaot.compile(lambda x, n: x * n, backend="eager")
    for value in (2, 3, 0, 1, -5, 7):
        assert torch.equal(vmap(lambda x, n=value: compiled(x, n))(X), X * value)
    assert len(funcaot.report(compiled).entries) == 2


def test_a_whole_number_that_is_a_size() -> None:
    compiled = funcaot.compile(lambda x, n: x[:n].sum(), backend="eager")
    for value in (2, 3, 1, 2, 0):
        found = vmap(lambda x, n=value: compiled(x, n))(X)
        torch.testing.assert_close(found, X[:, :value].sum(1))


def test_a_size_or_a_place_that_a_function_reads() -> None:
    settings = types.SimpleNamespace(n=2)

    def function(x: torch.Tensor) -> torch.Tensor:
        return x[: settings.n].sum() + x[settings.n - 1] * settings.n

    compiled = funcaot.compile(function, backend="eager")
    for settings.n in (2, 3, 1, 2):
        torch.testing.assert_close(vmap(compiled)(X), vmap(function)(X))
        torch.testing.assert_close(vmap(lambda x: compiled(x))(X), vmap(function)(X))


def test_inside_and_outside_of_a_transform() -> None:
    compiled = funcaot.compile(mixed, backend="eager")
    for value in VALUES:
        torch.testing.assert_close(compiled(X, value), mixed(X, value))
        torch.testing.assert_close(vmap(lambda x, n=value: compiled(x, n))(X), mixed(X, value))
    assert len(funcaot.report(compiled).entries) <= 4
