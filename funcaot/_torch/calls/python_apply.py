"""Interception where ``torch.autograd.Function.apply`` is a Python function (torch 2.13)."""

from __future__ import annotations

import types
from collections.abc import Callable
from typing import Any

import torch

from funcaot._torch.calls.code_swap import CodeSwap

__all__ = ["PythonApply"]


class PythonApply:
    """``apply`` of every Function, replaced from :meth:`install` until :meth:`undo`.

    Libraries keep ``relu = ReLU.apply`` at import. Such a bound method holds the function itself.
    """

    def __init__(
        self,
        hook: Callable[[type, tuple[Any, ...], dict[str, Any]], Any],
        wants: Callable[[type], bool],
    ) -> None:
        """Call ``hook(cls, args, kwargs)`` for each class that is wanted when it's applied."""
        self._hook, self._wants = hook, wants
        function: types.FunctionType = torch.autograd.Function.__dict__["apply"].__func__
        self._swap = CodeSwap(function, self._apply, "_funcaot_apply")

    def _apply(self, cls: type, /, *args: Any, **kwargs: Any) -> Any:
        if self._wants(cls):
            return self._hook(cls, args, kwargs)
        return self._original(cls, *args, **kwargs)

    def install(self) -> None:
        """Replace it; nothing where that is done."""
        self._swap.install()
        self._original = self._swap.original

    def settle(self) -> None:
        """Nothing: a call takes one step."""

    def undo(self) -> None:
        """Restore torch exactly."""
        self._swap.undo()
