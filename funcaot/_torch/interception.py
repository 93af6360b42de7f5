"""Replace what ``torch.autograd.Function.apply`` does, also where a bound ``apply`` was kept."""

from __future__ import annotations

import sys
import types
from collections.abc import Callable
from typing import Any

import torch

__all__ = ["original_apply", "replace_apply", "restore_apply"]

_HOOK = "_funcaot_apply"
_saved: list[types.CodeType] = []


def _apply_function() -> types.FunctionType:
    return torch.autograd.Function.__dict__["apply"].__func__


def _namespace() -> dict[str, Any]:
    return sys.modules[torch.autograd.Function.__module__].__dict__


def _code_calling_hook(free: tuple[str, ...]) -> types.CodeType:
    """Code for ``apply`` that calls the hook, with the free variables of the original."""
    lines = ["def outer():"]
    lines += [f"    {name} = None" for name in free]
    lines += ["    def apply(cls, *args, **kwargs):"]
    lines += [f"        {name}" for name in free]
    lines += [f"        return {_HOOK}(cls, args, kwargs)", "    return apply"]
    namespace: dict[str, Any] = {}
    exec("\n".join(lines), namespace)
    return namespace["outer"]().__code__


def replace_apply(hook: Callable[[type, tuple[Any, ...], dict[str, Any]], Any]) -> None:
    """Make every Function's ``apply`` call ``hook(cls, args, kwargs)``.

    Libraries keep ``relu = ReLU.apply`` at import. Such a bound method holds the function itself,
    and setting another attribute on the class doesn't reach it; changing the function's code does.
    """
    function = _apply_function()
    code = function.__code__
    _saved.append(code)
    _namespace()[_HOOK] = hook
    function.__code__ = _code_calling_hook(code.co_freevars)


def restore_apply() -> None:
    """Undo :func:`replace_apply`."""
    _apply_function().__code__ = _saved.pop()
    del _namespace()[_HOOK]


def original_apply() -> Callable[..., Any]:
    """Torch's own ``apply``, unbound, while it's replaced."""
    function = _apply_function()
    return types.FunctionType(
        _saved[-1],
        function.__globals__,
        function.__name__,
        function.__defaults__,
        function.__closure__,
    )
