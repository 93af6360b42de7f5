"""``funcaot.closure_convert``: what a function closes over, as arguments."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from funcaot._torch.levels.functorch import pytree
from funcaot.classes.differentiation import is_perturbed
from funcaot.errors import ArgumentError
from funcaot.rules.operands.closures import hollowed
from funcaot.rules.operands.lifted_call import has_tangent_type, unwrapped_while_dead

__all__ = ["closure_convert"]


def closure_convert(
    function: Callable[..., Any], *example_args: Any
) -> tuple[Callable[..., Any], list[torch.Tensor]]:
    """Make arguments of the differentiated tensors that a function closes over.

    With it a custom rule can say what the gradient by a closure is. It isn't needed to make rules
    of functions that close over tensors work.

    Args:
        function: The function.
        *example_args: Arguments of the structure that it is going to be called with.

    Returns:
        A function of arguments like the examples and then of these tensors; and the tensors.

    Raises:
        ArgumentError: It is no function.
        UnsupportedError: Such a tensor is held by what can't be copied.

    Example:
        >>> import torch, funcaot
        >>> def total(c):
        ...     closed, held = funcaot.closure_convert(lambda x: x * c, torch.tensor(3.0))
        ...     return closed(torch.tensor(3.0), *[10 * c for c in held])
        >>> torch.func.grad(total)(torch.tensor(2.0))
        tensor(30.)
    """
    if not callable(function):
        raise ArgumentError(
            "closure_convert was given what can't be called.",
            expected="a function",
            got=type(function).__name__,
            remedy="pass the function itself, not what a call of it returns.",
        )
    hollow, held, _ = hollowed((function,), _is_differentiated)
    count, expected = len(example_args), pytree.tree_structure(example_args)
    others = pytree.tree_structure(tuple(held))

    def converted(*args: Any) -> Any:
        given = pytree.tree_structure(args[:count])
        rest = pytree.tree_structure(args[count:])
        if given != expected or rest != others:
            raise ArgumentError(
                "The inputs to a function that closure_convert returned don't have the structure "
                "of its examples and of what it had closed over.",
                expected=f"{expected}, and then {others}",
                got=f"{given}, and then {rest}",
                remedy="pass arguments like the examples, then the tensors one by one.",
            )
        return hollow.filled(args[count:])[0](*args[:count])

    return converted, list(held)


def _is_differentiated(tensor: torch.Tensor) -> bool:
    tensor = unwrapped_while_dead(tensor)
    return has_tangent_type(tensor) and is_perturbed(tensor)
