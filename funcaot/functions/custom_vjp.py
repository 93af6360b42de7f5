"""``funcaot.custom_vjp``: a reverse rule for a plain function on pytrees."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from funcaot._torch.levels.functorch import pytree
from funcaot.functions.custom_rule import CustomRule, pair
from funcaot.rules.flat_call import FlatCall, OutputStructure

__all__ = ["custom_vjp"]


class custom_vjp(CustomRule):  # noqa: N801  (a decorator)
    """Give a function its own reverse rule, in JAX's argument order.

    ``fwd`` takes the function's arguments and returns ``(output, residuals)``; ``bwd`` takes the
    arguments named by ``nondiff_argnums``, then the residuals and the cotangents of the output, and
    returns a tuple with one cotangent per other argument. Arguments, output and residuals may be
    any pytrees. Without a derivative in sight the function itself is called.

    Unlike JAX's, forward mode works too: it's generated from ``bwd``, exactly if ``bwd`` is linear
    in the cotangents, differentiable in them, and doesn't branch on their values. So does ``vmap``.
    Derivatives of higher order go through ``bwd`` and through the residuals as computed by ``fwd``.

    Args:
        function: The function.
        nondiff_argnums: Positions of arguments that have no derivative.
        allow_nonlinear_rule: Don't check that ``bwd`` is linear when forward mode needs it.

    Example:
        >>> import torch, funcaot
        >>> @funcaot.custom_vjp
        ... def log1pexp(x):
        ...     return torch.log(1 + torch.exp(x))
        >>> def fwd(x):
        ...     return log1pexp(x), x
        >>> def bwd(x, cotangent):
        ...     return (cotangent * torch.sigmoid(x),)
        >>> log1pexp.defvjp(fwd, bwd)
        >>> torch.func.grad(log1pexp)(torch.tensor(100.0))
        tensor(1.)
    """

    setters = "defvjp"
    example = "defvjp(fwd, bwd)"

    def defvjp(self, fwd: Callable[..., Any], bwd: Callable[..., Any]) -> None:
        """Set the reverse rule.

        Args:
            fwd: ``fwd(*args) -> (output, residuals)``.
            bwd: ``bwd(*nondiff_args, residuals, cotangents) -> (cotangent, ...)``.
        """
        rules = _Rules(self.name, fwd, bwd)
        self._set_rule(
            (fwd, bwd),
            forward=staticmethod(rules.forward),
            backward=staticmethod(rules.backward),
            second_order="exact",
        )


class _Rules:
    """The staticmethods of the Function behind one ``custom_vjp``."""

    def __init__(self, name: str, fwd: Callable[..., Any], bwd: Callable[..., Any]) -> None:
        self.name, self.fwd, self.bwd = name, fwd, bwd

    def forward(self, ctx: Any, call: FlatCall, *tensors: Any) -> tuple[Any, ...]:
        arguments = call.arguments(tensors)
        output, residuals = pair(
            self.fwd(*arguments),
            f"fwd of {self.name} (custom_vjp)",
            expected="output, residuals",
            remedy="return the output, and what bwd needs.",
        )
        leaves, spec = pytree.tree_flatten(output)
        ctx.call, ctx.spec = call, spec
        ctx.residuals = residuals
        ctx.fixed = call.split(arguments)[0]
        return (*leaves, OutputStructure(spec))

    def backward(self, ctx: Any, *cotangents: Any) -> tuple[Any, ...]:
        tree = pytree.tree_unflatten(list(cotangents[:-1]), ctx.spec)
        result = self.bwd(*ctx.fixed, ctx.residuals, tree)
        return (None, *ctx.call.gradients(result, f"bwd of {self.name} (custom_vjp)"))
