"""``mark_static``: sizes and numbers that no program leaves open."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any

import torch

from funcaot.aot.runtime.compiled import CompiledFunction
from funcaot.aot.runtime.module import compiled_of
from funcaot.aot.signature.dynamic import dimensions_of, mark_closed
from funcaot.errors import FuncaotError

__all__ = ["mark_static"]


def mark_static(what: Any, *which: Any) -> None:
    """Compile for each size of a tensor, or each value of an argument, separately.

    By default a size that changes is left open, and so is a number where the function only
    computes with it. A program for one value may be faster: a loop is unrolled, ``x ** 2`` is a
    product.

    Args:
        what: A tensor that compiled functions are given, on which the mark is kept; or what
            ``funcaot.compile`` returned, whose arguments are meant from the next compilation on.
        *which: Dimensions of the tensor, all of them by default; or names of arguments, whose
            sizes and numbers stay as they are.

    Raises:
        FuncaotError: For a dimension that the tensor doesn't have, a name that isn't an argument's,
            or for something else than a tensor or a compiled function.

    Example:
        >>> import funcaot, torch
        >>> f = funcaot.compile(lambda x, power: x ** power + power, backend="eager")
        >>> funcaot.mark_static(f, "power")
        >>> for power in (2.0, 3.0, 4.0):
        ...     _ = f(torch.ones(3), power)
        >>> len(funcaot.report(f).entries)
        3
    """
    if isinstance(what, torch.Tensor):
        mark_closed(what, dimensions_of(what, which or tuple(range(what.dim())), "mark_static"))
        return
    found = compiled_of(what) if isinstance(what, torch.nn.Module) else what
    found = getattr(found, "__func__", found)
    if not isinstance(found, CompiledFunction):
        raise FuncaotError(
            "mark_static marks a tensor's dimensions or a compiled function's arguments.",
            expected="a tensor, or what funcaot.compile returned",
            got=type(what).__name__,
            remedy="mark the compiled function, not the original one.",
        )
    names = _names(getattr(what, "forward", None) or found.function)
    for name in which:
        if not isinstance(name, str) or (names is not None and name not in names):
            raise FuncaotError(
                f"mark_static was given something that is no argument of {found.settings.name}.",
                expected=f"names among {', '.join(names or ())}" if names else "names",
                got=repr(name),
                remedy="give the names of parameters, as text.",
            )
    found.keep_static(frozenset(which))


def _names(function: Callable[..., Any]) -> tuple[str, ...] | None:
    """The names of parameters; None if any may be one."""
    try:
        parameters = inspect.signature(function).parameters.values()
    except (TypeError, ValueError):
        return None
    if any(parameter.kind is parameter.VAR_KEYWORD for parameter in parameters):
        return None
    return tuple(parameter.name for parameter in parameters)
