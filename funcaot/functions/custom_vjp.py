"""``funcaot.custom_vjp``: a reverse rule for a plain function on pytrees."""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import Any

from funcaot._torch.autograd.autograd import new_function_class
from funcaot._torch.levels.functorch import pytree
from funcaot.classes.differentiation import is_differentiated
from funcaot.errors import FuncaotError, MissingRuleError, RuleError
from funcaot.functions.function import Function
from funcaot.rules.flat_call import FlatCall, OutputStructure, flatten_call
from funcaot.rules.reached import refuse_closed_over
from funcaot.rules.returns import describe

__all__ = ["custom_vjp"]


class custom_vjp:  # noqa: N801  (a decorator)
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

    def __init__(
        self,
        function: Callable[..., Any],
        nondiff_argnums: Sequence[int] = (),
        *,
        allow_nonlinear_rule: bool = False,
    ) -> None:
        """Wrap ``function``; its rule is given by :meth:`defvjp`."""
        if not callable(function):
            raise FuncaotError(
                "custom_vjp needs a function.",
                expected="a function of tensors",
                got=type(function).__name__,
                remedy="decorate the function itself.",
            )
        functools.update_wrapper(self, function)
        self.name = getattr(function, "__name__", type(function).__name__)
        self.function = function
        self.nondiff_argnums = tuple(nondiff_argnums)
        self.allow_nonlinear_rule = allow_nonlinear_rule
        self._rule: type[Function] | None = None
        self._functions: tuple[Callable[..., Any], ...] = ()

    def defvjp(self, fwd: Callable[..., Any], bwd: Callable[..., Any]) -> None:
        """Set the reverse rule.

        Args:
            fwd: ``fwd(*args) -> (output, residuals)``.
            bwd: ``bwd(*nondiff_args, residuals, cotangents) -> (cotangent, ...)``.
        """
        namespace = {
            **_staticmethods(_Rules(self.name, fwd, bwd)),
            "allow_nonlinear_rule": self.allow_nonlinear_rule,
            "second_order": "exact",
            "__module__": self.__module__,
        }
        self._rule = new_function_class(self.name, Function, namespace)
        self._functions = (self.function, fwd, bwd)

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Call the function; with its rule where it's differentiated.

        Raises:
            MissingRuleError: It's differentiated and :meth:`defvjp` was never called.
            UnsupportedError: The function or its rules close over what a transform looks at.
        """
        call, tensors, args = flatten_call(self.function, self.nondiff_argnums, args, kwargs)
        if not is_differentiated(tensors):
            return self.function(*args)
        if self._rule is None:
            raise MissingRuleError(
                f"{self.name} is a custom_vjp function and was differentiated",
                expected="a rule set by defvjp",
                got="none",
                remedy=f"call {self.name}.defvjp(fwd, bwd).",
            )
        refuse_closed_over(f"{self.name} (custom_vjp)", self._functions)
        *leaves, structure = self._rule.apply(call, *tensors)
        return structure.rebuild(leaves)


class _Rules:
    """The staticmethods of the Function behind one ``custom_vjp``."""

    def __init__(self, name: str, fwd: Callable[..., Any], bwd: Callable[..., Any]) -> None:
        self.name, self.fwd, self.bwd = name, fwd, bwd

    def forward(self, ctx: Any, call: FlatCall, *tensors: Any) -> tuple[Any, ...]:
        arguments = call.arguments(tensors)
        result = self.fwd(*arguments)
        if not isinstance(result, tuple) or len(result) != 2:
            raise RuleError(
                f"fwd of {self.name} (custom_vjp) returned something that can't be unpacked",
                expected="a tuple of two, (output, residuals)",
                got=describe(result),
                remedy="return the output, and what bwd needs.",
            )
        output, residuals = result
        leaves, spec = pytree.tree_flatten(output)
        ctx.call, ctx.spec = call, spec
        ctx.residuals = residuals
        ctx.fixed = call.split(arguments)[0]
        return (*leaves, OutputStructure(spec))

    def backward(self, ctx: Any, *cotangents: Any) -> tuple[Any, ...]:
        tree = pytree.tree_unflatten(list(cotangents[:-1]), ctx.spec)
        result = self.bwd(*ctx.fixed, ctx.residuals, tree)
        return (None, *ctx.call.gradients(result, f"bwd of {self.name} (custom_vjp)"))


def _staticmethods(rules: _Rules) -> dict[str, Any]:
    return {
        "forward": staticmethod(rules.forward),
        "backward": staticmethod(rules.backward),
    }
