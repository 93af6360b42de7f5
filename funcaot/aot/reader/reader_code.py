"""The functions made of what an environment's reader is written as: one reads, one explains."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

from funcaot.aot.graph.source import Source
from funcaot.aot.reader import told

_CAUGHT = "(AttributeError, KeyError, IndexError, ValueError, TypeError, ArithmeticError)"


class Line(NamedTuple):
    """A line of a reader.

    Attributes:
        text: A statement; or a condition, if it says something.
        says: What the condition compares, in words.
        change: An expression that says what was and what is now, by the functions of ``told``.
        path: What a statement reads, in words.
        of_classes: Whether it is about what lookup finds in classes, and nothing else.
    """

    text: str
    says: str | None = None
    change: str = ""
    path: str = ""
    of_classes: bool = False


class Explanation:
    """Says what isn't as it was; the function that does is made when it is first asked.

    Attributes:
        namespace: What the lines name.
        lines: What compares.
    """

    def __init__(self, namespace: dict[str, Any], lines: Sequence[Line]) -> None:
        """Keep the lines that an environment is compared by."""
        self.namespace = namespace
        self.lines = lines
        self._function: Callable[..., str] | None = None

    def __call__(self, root: tuple[Any, ...]) -> str:
        """What has changed, in words; empty if nothing has."""
        if self._function is None:
            lines = [each for line in self.lines for each in (_reading(line), line)]
            lines = [Line("reading = 'something that it reads'"), *filter(None, lines)]
            caught = "f'{reading} is gone'"
            namespace = {**self.namespace, **told.BY_NAME}
            self._function = built(namespace, lines, "why(root)", ("''", _missed, caught))
        return self._function(root)


def _reading(line: Line) -> Line | None:
    """A statement that notes what the next one reads."""
    return Line(f"reading = {line.path!r}") if line.path else None


def _missed(line: Line) -> str:
    return line.change or repr(f"no longer so: {line.says}")


def built(
    namespace: dict[str, Any],
    lines: Sequence[Line],
    header: str,
    results: tuple[str, Callable[[Line], str], str],
) -> Callable[..., Any]:
    """A function of lines.

    Args:
        namespace: What they name.
        lines: What it consists of.
        header: The function's name and argument.
        results: What it returns at the end, where a condition fails, and where something is gone.
    """
    result, missed, caught = results
    source = Source(**namespace)
    source.line("try:")
    for line in lines:
        said = line.says is not None
        source.line(f"if not ({line.text}): return {missed(line)}" if said else line.text, 2)
    source.line(f"return {result}", 2)
    source.line(f"except {_CAUGHT}:")
    source.line(f"return {caught}", 2)
    return source.build(header)
