"""Pieces of HTML that reports, stages and checks are made of in notebooks."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from html import escape

from torch import fx

from funcaot.report.words import WORDS

# Lines of a graph's code that are shown; ``.graph`` has all of them.
_LINES = 400
_COLOURS = ("#4c78a8", "#f58518", "#54a24b", "#b279a2", "#e45756", "#72b7b2", "#9d755d", "#bab0ac")

# Colours of the page stay: nothing has a background but bars.
STYLE = (
    "<style>"
    ".funcaot{line-height:1.5;overflow-x:auto}"
    ".funcaot details{margin-left:1em}"
    ".funcaot summary{cursor:pointer;margin-left:-1em}"
    ".funcaot table{border-collapse:collapse;border:none;margin:.2em 0}"
    ".funcaot tr,.funcaot td,.funcaot th{background:transparent;border:none;"
    "padding:.05em .8em .05em 0;text-align:left;vertical-align:top;color:inherit}"
    ".funcaot td code{white-space:nowrap}"
    ".funcaot .bar{display:inline-block;height:.7em;min-width:1px}"
    ".funcaot .faint{opacity:.7}"
    ".funcaot pre{overflow-x:auto;max-height:30em;background:transparent;color:inherit}"
    ".funcaot abbr{text-decoration:underline dotted;cursor:help}"
    "</style>"
)


def framed(*parts: str) -> str:
    """A piece of a page that stands alone."""
    return f'{STYLE}<div class="funcaot">{"".join(parts)}</div>'


def word(name: str, shown: str | None = None) -> str:
    """A word of the glossary, with its meaning as a tooltip."""
    return f'<abbr title="{escape(WORDS[name])}">{escape(shown or name)}</abbr>'


def code(text: object) -> str:
    """Text as code."""
    return f"<code>{escape(str(text))}</code>"


def folded(summary: str, *parts: str, opened: bool = False) -> str:
    """Parts behind a summary that can be clicked; both are HTML."""
    state = " open" if opened else ""
    return f"<details{state}><summary>{summary}</summary>{''.join(parts)}</details>"


def lines_of(texts: Iterable[object]) -> str:
    """A list of lines of code."""
    items = "".join(f"<li>{code(text)}</li>" for text in texts)
    return f"<ul>{items}</ul>"


def graph_code(graph: fx.GraphModule) -> str:
    """A graph as Python code with shapes."""
    lines = graph.print_readable(print_output=False).splitlines()
    left = len(lines) - _LINES
    shown = lines[:_LINES] + ([f"... {left} more lines: see .graph"] if left > 0 else [])
    return f"<pre>{escape(chr(10).join(shown))}</pre>"


def bar(share: float, colour: str = _COLOURS[0], width: float = 12) -> str:
    """A bar as long as a share of the whole."""
    return f'<span class="bar" style="width:{width * share:.2f}em;background:{colour}"></span>'


def table(head: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """A table; cells are HTML."""
    body = "".join(f"<tr>{''.join(f'<td>{cell}</td>' for cell in row)}</tr>" for row in rows)
    heads = "".join(f"<th>{escape(name)}</th>" for name in head)
    return f"<table>{f'<tr>{heads}</tr>' if any(head) else ''}{body}</table>"


def timings(seconds: dict[str, float]) -> str:
    """Stages with their times, and one bar that they share."""
    total = sum(seconds.values())
    if not total:
        return ""
    coloured = [
        (stage, taken, _COLOURS[at % len(_COLOURS)])
        for at, (stage, taken) in enumerate(seconds.items())
    ]
    whole = "".join(bar(taken / total, colour, 30) for _, taken, colour in coloured)
    legend = ", ".join(
        f'<span style="color:{colour}">&#9632;</span> {escape(stage)} {taken * 1e3:.1f} ms'
        for stage, taken, colour in coloured
    )
    return f'<div>{whole}</div><div class="faint">{legend}</div>'
