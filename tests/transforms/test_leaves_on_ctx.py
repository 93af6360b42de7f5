"""What a forward keeps on ctx to compute again in backward: leaves of a graph to come."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch

import funcaot
from funcaot.errors import UnsupportedError


class Again(torch.autograd.Function):
    """Backward runs forward again on leaves that forward kept, as reversible layers do."""

    kept = "attributes"

    @classmethod
    def gradients(cls, y: torch.Tensor, leaves: tuple[torch.Tensor, ...], g: torch.Tensor) -> Any:
        """Gradients by the leaves."""
        return torch.autograd.grad(y, leaves, g)

    @classmethod
    def forward(cls, ctx: Any, x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
        leaves = x.detach().requires_grad_(), w.detach().requires_grad_()
        if cls.kept != "saved":
            ctx.x, ctx.rest = leaves[0], [leaves[1], 3]
        if cls.kept != "attributes":
            ctx.save_for_backward(*leaves)
        return (x * w).sin()

    @classmethod
    def backward(cls, ctx: Any, *gradients: torch.Tensor) -> Any:
        x, w = ctx.saved_tensors if cls.kept == "saved" else (ctx.x, ctx.rest[0])
        with torch.enable_grad():
            y = (x * w).sin()
        found = cls.gradients(y, (x, w), gradients[0])
        return found if cls.kept != "both" else (ctx.saved_tensors[0].grad, found[1])


class Accumulated(Again):
    """The same by ``.backward()``, which leaves gradients on the leaves."""

    @classmethod
    def gradients(cls, y: torch.Tensor, leaves: tuple[torch.Tensor, ...], g: torch.Tensor) -> Any:
        """Gradients by the leaves."""
        y.backward(g)
        return tuple(leaf.grad for leaf in leaves)


def run(function: Callable[..., torch.Tensor]) -> list[torch.Tensor | None]:
    """Gradients of three calls."""
    found: list[torch.Tensor | None] = []
    for _ in range(3):
        x, w = (torch.full((2,), v, requires_grad=True) for v in (0.4, 1.3))
        function(x, w).sum().backward()
        found += [x.grad, w.grad]
    return found


@pytest.mark.parametrize(
    ("base", "kept"),
    [
        (Again, "attributes"),
        (Again, "saved"),
        (Accumulated, "attributes"),
        (Accumulated, "saved"),
        (Accumulated, "both"),
    ],
)
def test_leaves_that_backward_differentiates_by(base: type[Again], kept: str) -> None:
    """A leaf comes to backward as one, and as the same under each name."""
    function = type(base.__name__, (base,), {"kept": kept})

    def model(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
        return function.apply(x * 2, w) * 3

    torch.testing.assert_close(run(funcaot.compile(model, backend="eager")), run(model))


def test_a_leaf_from_before_the_call() -> None:
    """Its gradient would be added to a copy; what only reads it is as ever."""
    weight = torch.full((2,), 2.0, requires_grad=True)

    class Weighted(torch.autograd.Function):
        accumulates = False

        @staticmethod
        def forward(ctx: Any, x: torch.Tensor) -> torch.Tensor:
            ctx.w, ctx.x = weight, x.detach().requires_grad_()
            return x * weight

        @staticmethod
        def backward(ctx: Any, *gradients: torch.Tensor) -> Any:
            if not Weighted.accumulates:
                return gradients[0] * ctx.w
            with torch.enable_grad():
                y = ctx.x * ctx.w
            y.backward(gradients[0])
            return ctx.x.grad

    compiled = funcaot.compile(lambda x: Weighted.apply(x * 2), backend="eager")
    x = torch.ones(2, requires_grad=True)
    with funcaot.config.patch(check_aliases=False):  # what it keeps lies in its operand's memory
        compiled(x).sum().backward()
        torch.testing.assert_close(x.grad, torch.full((2,), 4.0))
        Weighted.accumulates = True
        with pytest.raises(UnsupportedError, match="gradient of a tensor that forward kept"):
            compiled(x).sum().backward()


def test_a_graph_on_ctx_is_an_error_under_a_transform() -> None:
    """It was recorded below the level, where no tensor of the level has a part in it."""

    class Reentrant(torch.autograd.Function):
        @staticmethod
        def forward(ctx: Any, x: torch.Tensor) -> torch.Tensor:
            with torch.enable_grad():
                ctx.x = x.detach().requires_grad_()
                ctx.y = ctx.x.sin()
            return ctx.y.detach()

        @staticmethod
        def backward(ctx: Any, *gradients: torch.Tensor) -> Any:
            return torch.autograd.grad(ctx.y, ctx.x, gradients[0])

    compiled = funcaot.compile(torch.func.grad(lambda x: Reentrant.apply(x).sum()), backend="eager")
    with pytest.raises(UnsupportedError, match=r"compute it again.*requires_grad_\(\)"):
        compiled(torch.ones(2, requires_grad=True))


def test_saved_variables() -> None:
    """The name that torch deprecates."""

    class Old(torch.autograd.Function):
        @staticmethod
        def forward(ctx: Any, x: torch.Tensor) -> torch.Tensor:
            ctx.save_for_backward(x)
            return x * x

        @staticmethod
        def backward(ctx: Any, *gradients: torch.Tensor) -> Any:
            (x,) = ctx.saved_variables
            return gradients[0] * 2 * x

    x = torch.full((2,), 3.0, requires_grad=True)
    with pytest.warns(DeprecationWarning, match="saved_variables"):
        funcaot.compile(lambda x: Old.apply(x) * 2, backend="eager")(x).sum().backward()
    torch.testing.assert_close(x.grad, torch.full((2,), 12.0))
