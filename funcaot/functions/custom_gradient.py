"""``funcaot.custom_gradient``: a function that returns its value and its gradient."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

from funcaot.functions.custom_rule import P, R
from funcaot.functions.custom_vjp import custom_vjp

__all__ = ["custom_gradient"]


def custom_gradient(function: Callable[P, tuple[R, Callable[..., Any]]]) -> custom_vjp[P, R]:
    """Give a function a reverse rule that is made together with its value.

    Args:
        function: ``function(*args) -> (value, rule)``, where ``rule(cotangent)`` returns a tuple
            with one cotangent per argument, or that of the only argument alone.

    Returns:
        The function of which the first is the value, as a :class:`funcaot.custom_vjp`.

    Example:
        >>> import torch, funcaot
        >>> @funcaot.custom_gradient
        ... def f(x):
        ...     return x**2, lambda cotangent: cotangent * x
        >>> torch.func.grad(f)(torch.tensor(3.0))
        tensor(3.)
    """
    both: Callable[..., tuple[Any, Callable[..., Any]]] = function

    @functools.wraps(function)
    def value(*args: P.args, **kwargs: P.kwargs) -> R:
        return both(*args, **kwargs)[0]

    def fwd(*args: Any) -> tuple[Any, tuple[Any, int]]:
        output, rule = both(*args)
        return output, (rule, len(args))

    def bwd(residuals: tuple[Any, int], cotangent: Any) -> Any:
        rule, count = residuals
        result = rule(cotangent)
        alone = count == 1 and not (isinstance(result, (tuple, list)) and len(result) == 1)
        return (result,) if alone else result

    wrapped = custom_vjp(value)
    wrapped.defvjp(fwd, bwd)
    return wrapped
