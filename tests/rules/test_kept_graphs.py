"""Functions whose forward records a graph and keeps it on ctx, compiled, compared to eager."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch

import funcaot
from funcaot.errors import UnsupportedError

linear = torch.nn.Linear(3, 3)
outside = torch.ones(3, requires_grad=True)


def pull(table: torch.Tensor = torch.ones(3)) -> torch.Tensor:  # noqa: B008
    """What a Function keeps has this name, too; nothing computes with the table."""
    return table


class Kept(torch.autograd.Function):
    """Keeps a leaf and what it computes of it."""

    @staticmethod
    def computed(leaf: torch.Tensor) -> torch.Tensor:
        """What forward computes."""
        return leaf.sin() * leaf

    @classmethod
    def forward(cls, ctx: Any, x: torch.Tensor) -> torch.Tensor:
        with torch.enable_grad():
            ctx.x = x.detach().requires_grad_()
            ctx.y = cls.computed(ctx.x)
        return ctx.y.detach()

    @staticmethod
    def backward(ctx: Any, *gradients: torch.Tensor) -> Any:
        return torch.autograd.grad(ctx.y, ctx.x, gradients[0])[0]


class Filled(Kept):
    """Takes the gradient off the leaf."""

    @staticmethod
    def backward(ctx: Any, *gradients: torch.Tensor) -> Any:
        ctx.y.backward(gradients[0])
        return ctx.x.grad


class Drawn(Kept):
    """Draws random numbers, which can't be drawn again."""

    @staticmethod
    def computed(leaf: torch.Tensor) -> torch.Tensor:
        return leaf.sin() * torch.rand_like(leaf)


class Closed(Filled):
    """Fills gradients of a module that it closes over."""

    @staticmethod
    def computed(leaf: torch.Tensor) -> torch.Tensor:
        return linear(leaf).tanh()


class Foreign(Filled):
    """Fills the gradient of a tensor that is no parameter."""

    @staticmethod
    def computed(leaf: torch.Tensor) -> torch.Tensor:
        return leaf.sin() * outside


class InObject(Kept):
    """Keeps both in an object."""

    class Box:
        """Holds them."""

    @classmethod
    def forward(cls, ctx: Any, x: torch.Tensor) -> torch.Tensor:
        ctx.box = cls.Box()
        return Kept.forward(ctx.box, x)

    @staticmethod
    def backward(ctx: Any, *gradients: torch.Tensor) -> Any:
        return Kept.backward(ctx.box, *gradients)


class OfOperand(Kept):
    """Keeps the operand itself, with what it records of it."""

    @classmethod
    def forward(cls, ctx: Any, x: torch.Tensor) -> torch.Tensor:
        with torch.enable_grad():
            ctx.x, ctx.y = x, cls.computed(x)
        return ctx.y.detach()


class Saved(Kept):
    """Saves what it records, which a second derivative goes through."""

    @classmethod
    def forward(cls, ctx: Any, x: torch.Tensor) -> torch.Tensor:
        with torch.enable_grad():
            y = x.sin()
        ctx.save_for_backward(x, y)
        return (y * y).detach()

    @staticmethod
    def backward(ctx: Any, *gradients: torch.Tensor) -> Any:
        x, y = ctx.saved_tensors
        return gradients[0] * 2 * y * x.cos()


class Pullback(Kept):
    """Keeps what torch.func.vjp returned."""

    @classmethod
    def forward(cls, ctx: Any, x: torch.Tensor) -> torch.Tensor:
        y, ctx.pull = torch.func.vjp(cls.computed, x)
        return y.detach()

    @staticmethod
    def backward(ctx: Any, *gradients: torch.Tensor) -> Any:
        return ctx.pull(*gradients)[0]


class InSetup(Kept):
    """Records in setup_context."""

    @staticmethod
    def forward(x: torch.Tensor) -> torch.Tensor:
        return Kept.computed(x)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: Any) -> None:
        Kept.forward(ctx, *inputs)


class Solved(torch.autograd.Function):
    """A fixed point, whose backward differentiates one step many times."""

    @staticmethod
    def forward(ctx: Any, x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
        z = torch.zeros_like(x)
        while True:
            last, z = z, torch.tanh(z @ w * 0.3 + x)
            if (z - last).norm().item() < 1e-3:
                break
        with torch.enable_grad():
            ctx.z = z.detach().requires_grad_()
            ctx.given = x.detach().requires_grad_(), w.detach().requires_grad_()
            ctx.y = torch.tanh(ctx.z @ ctx.given[1] * 0.3 + ctx.given[0])
        return ctx.y.detach()

    @staticmethod
    def backward(ctx: Any, *gradients: torch.Tensor) -> Any:
        v = gradients[0]
        for _ in range(4):
            v = gradients[0] + torch.autograd.grad(ctx.y, ctx.z, v, retain_graph=True)[0]
        return torch.autograd.grad(ctx.y, ctx.given, v)


FUNCTIONS = [Kept, Filled, Drawn, Closed, InObject, OfOperand, Saved, Pullback, InSetup]


def inputs() -> torch.Tensor:
    """The same in each call."""
    return torch.linspace(-1.0, 2.0, 12).reshape(4, 3).requires_grad_()


def trained(f: Callable[..., Any]) -> list[Any]:
    """Gradients of several calls, of several kinds of gradients that arrive, after two calls."""
    torch.manual_seed(0)
    found: list[Any] = []
    for gradient in (torch.ones(4, 3), torch.ones(3, 4).t(), torch.ones(1, 1).expand(4, 3)):
        x, other = inputs(), inputs()
        y, _ = f(x), f(other.detach().mul(2).requires_grad_())
        y.backward(gradient)
        found += [x.grad, *[p.grad for p in linear.parameters()]]
        linear.zero_grad()
    return found


@pytest.mark.parametrize("function", FUNCTIONS)
def test_gradients(function: Any) -> None:
    def f(x: torch.Tensor) -> torch.Tensor:
        return function.apply(x * 2) * 3

    torch.testing.assert_close(trained(funcaot.compile(f, backend="eager")), trained(f))


@pytest.mark.slow
def test_on_inductor() -> None:
    def f(x: torch.Tensor) -> torch.Tensor:
        return Closed.apply(x * 2) * 3

    torch.testing.assert_close(trained(funcaot.compile(f)), trained(f))


@pytest.mark.parametrize("function", [Kept, OfOperand, Saved, Pullback])
def test_second_derivatives(function: Any) -> None:
    """They go where the graph that was kept leads."""

    def second(f: Callable[..., Any]) -> Any:
        x = inputs()
        (g,) = torch.autograd.grad(f(x).sin().sum(), x, create_graph=True)
        return torch.autograd.grad(g.sum(), x)[0] if g.requires_grad else None

    def f(x: torch.Tensor) -> torch.Tensor:
        return function.apply(x * 2) * 3

    torch.testing.assert_close(second(funcaot.compile(f, backend="eager")), second(f))


def test_open_sizes() -> None:
    compiled = funcaot.compile(Filled.apply, backend="eager")
    for size in (4, 5, 7):
        x, y = (torch.ones(size, 3, requires_grad=True) for _ in range(2))
        compiled(x).sum().backward()
        Filled.apply(y).sum().backward()
        torch.testing.assert_close(x.grad, y.grad)
    assert len(funcaot.report(compiled).entries) == 2


def test_a_step_that_runs_the_backward() -> None:
    def step(x: torch.Tensor) -> Any:
        Closed.apply(x * 2).sum().backward()

    def stepped(f: Callable[..., Any]) -> list[Any]:
        x = inputs()
        linear.zero_grad()
        f(x)
        return [x.grad, *[p.grad for p in linear.parameters()]]

    compiled = funcaot.compile(step, backend="eager")
    for _ in range(2):
        torch.testing.assert_close(stepped(compiled), stepped(step))


def test_a_fixed_point() -> None:
    """What looks at values to end is looked at again in each call."""
    compiled = funcaot.compile(Solved.apply, backend="eager")
    for scale in (1.0, 1.0, 0.1):
        found = []
        for f in (compiled, Solved.apply):
            x, w = inputs(), torch.eye(3).mul(scale).requires_grad_()
            f(x, w).sum().backward()
            found.append((x.grad, w.grad))
        torch.testing.assert_close(*found)


def test_a_parameter_that_changed_is_an_error() -> None:
    """What the graph saved has to be as it was."""
    y = funcaot.compile(Closed.apply, backend="eager")(inputs())
    with torch.no_grad():
        linear.weight.mul_(1.0)
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        y.sum().backward()


def test_a_gradient_that_would_be_lost_is_an_error() -> None:
    y = funcaot.compile(Foreign.apply, backend="eager")(inputs())
    with pytest.raises(UnsupportedError, match="of a tensor from outside of it"):
        y.sum().backward()


def test_what_cannot_be_traced_is_an_error() -> None:
    class Array(Kept):
        @staticmethod
        def computed(leaf: torch.Tensor) -> torch.Tensor:
            return leaf.sin() * float(leaf.detach().numpy().sum())

    with pytest.raises(UnsupportedError, match="together with the graph"):
        funcaot.compile(Array.apply, backend="eager")(inputs())
