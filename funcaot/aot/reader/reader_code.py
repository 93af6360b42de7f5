"""The functions made of what an environment's reader is written as: one reads, one explains."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from funcaot.aot.graph.source import Source

_CAUGHT = "(AttributeError, KeyError, IndexError, ValueError, TypeError)"


class Explanation:
    """Says what isn't as it was; the function that does is made when it is first asked.

    Attributes:
        namespace: What the lines name.
        lines: Statements; or conditions, each with what it compares.
    """

    def __init__(self, namespace: dict[str, Any], lines: Sequence[tuple[str, str | None]]) -> None:
        """Keep the lines that an environment is compared by.

        Args:
            namespace: What they name.
            lines: Statements; or conditions, each with what it compares.
        """
        self.namespace = namespace
        self.lines = lines
        self._function: Callable[..., str] | None = None

    def __call__(self, root: tuple[Any, ...]) -> str:
        """What has changed, in words; empty if nothing has."""
        if self._function is None:
            caught = "'something that it reads is gone'"
            self._function = built(self.namespace, self.lines, "why(root)", ("''", repr, caught))
        return self._function(root)


def built(
    namespace: dict[str, Any],
    lines: Sequence[tuple[str, str | None]],
    header: str,
    results: tuple[str, Callable[[str], str], str],
) -> Callable[..., Any]:
    """A function of lines.

    Args:
        namespace: What they name.
        lines: Statements; or conditions, each with what it compares.
        header: The function's name and argument.
        results: What it returns at the end, where a condition fails, and where something is gone.
    """
    result, missed, caught = results
    source = Source(**namespace)
    source.line("try:")
    for text, says in lines:
        source.line(text if says is None else f"if not ({text}): return {missed(says)}", 2)
    source.line(f"return {result}", 2)
    source.line(f"except {_CAUGHT}:")
    source.line(f"return {caught}", 2)
    return source.build(header)
