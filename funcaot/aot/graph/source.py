"""Writing a function as source text: lines, and the objects that they name."""

from __future__ import annotations

import functools
import types
from collections.abc import Callable
from typing import Any


class Source:
    """A function under construction.

    The code of equal text is compiled once. The finished function isn't reachable from its own
    namespace, so that it dies with its last reference, not with the next garbage collection.

    Attributes:
        namespace: The function's globals: what its lines name.
    """

    def __init__(self, **namespace: Any) -> None:
        """Start without lines."""
        self.namespace: dict[str, Any] = dict(namespace)
        self._lines: list[str] = []
        self._counts: dict[str, int] = {}

    def name(self, stem: str) -> str:
        """A new name for a local variable."""
        count = self._counts.get(stem, 0)
        self._counts[stem] = count + 1
        return f"{stem}{count}"

    def constant(self, value: Any, stem: str = "k") -> str:
        """A new name that means this object."""
        name = self.name(stem)
        self.namespace[name] = value
        return name

    def line(self, text: str, indent: int = 1) -> None:
        """Append a line."""
        self._lines.append("    " * indent + text)

    def build(self, header: str) -> Callable[..., Any]:
        """The function ``def <header>:`` of the lines so far."""
        text = "\n".join([f"def {header}:", *self._lines])
        name = header.partition("(")[0]
        exec(_compiled(text), self.namespace)
        function: types.FunctionType = self.namespace.pop(name)
        return function


@functools.lru_cache(maxsize=256)
def _compiled(text: str) -> types.CodeType:
    return compile(text, "<funcaot generated>", "exec")


def listed(names: list[str]) -> str:
    """``a, b`` for an argument list or a list display."""
    return ", ".join(names)


def unpacked(names: list[str], value: str) -> str:
    """The statement that unpacks a sequence of known length."""
    return f"{''.join(f'{name}, ' for name in names)} = {value}"
