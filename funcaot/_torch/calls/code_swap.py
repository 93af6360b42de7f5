"""Replace what a Python function of torch does, also for those who hold the function itself."""

from __future__ import annotations

import types
from collections.abc import Callable
from typing import Any

__all__ = ["CodeSwap"]


class CodeSwap:
    """A function whose code calls another one for now.

    Setting an attribute of a module or a class doesn't reach a function that somebody holds;
    changing its code does.
    """

    def __init__(self, function: types.FunctionType, hook: Callable[..., Any], name: str) -> None:
        """Prepare to swap the code of ``function`` for one that passes its arguments on.

        Args:
            function: The function; keyword arguments come to ``hook`` as such.
            hook: What to call instead.
            name: A free name among the function's globals, for ``hook``.
        """
        self._function, self._hook, self._name = function, hook, name
        self._code = function.__code__
        self._passing_on = _passing_on(name, self._code.co_freevars)

    @property
    def original(self) -> Callable[..., Any]:
        """A function that does what the swapped one did."""
        function = self._function
        return types.FunctionType(
            self._code,
            function.__globals__,
            function.__name__,
            function.__defaults__,
            function.__closure__,
        )

    def install(self) -> None:
        """Swap the code, unless that is done."""
        if self._function.__code__ is not self._passing_on:
            self._code = self._function.__code__
            self._function.__globals__[self._name] = self._hook
            self._function.__code__ = self._passing_on

    def undo(self) -> None:
        """Give the function its own code again."""
        if self._function.__code__ is self._passing_on:
            self._function.__code__ = self._code
        self._function.__globals__.pop(self._name, None)


def _passing_on(name: str, free: tuple[str, ...]) -> types.CodeType:
    """Code that calls a global, with the free variables of the code that it stands for."""
    lines = ["def outer():"]
    lines += [f"    {variable} = None" for variable in free]
    lines += ["    def inner(*args, **kwargs):"]
    lines += [f"        {variable}" for variable in free]
    lines += [f"        return {name}(*args, **kwargs)", "    return inner"]
    namespace: dict[str, Any] = {}
    exec("\n".join(lines), namespace)
    return namespace["outer"]().__code__
