"""Show a result: plain text, colours by rich where it is installed, JSON, HTML."""

from __future__ import annotations

import html
import json
import shutil
import textwrap
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from funcaot.testing.check.result import CheckResult, Row

SYMBOLS = {"passes": "ok", "warns": "WARN", "wrong": "WRONG", "unsupported": "--", "error": "ERROR"}
COLOURS = {
    "passes": "green",
    "warns": "bold yellow",
    "wrong": "bold red",
    "unsupported": "yellow",
    "error": "bold red",
}
SHADES = {
    "passes": "#d9f2d9",
    "warns": "#ffe0a3",
    "wrong": "#f7c6c6",
    "unsupported": "#fff2cc",
    "error": "#f7c6c6",
}


def error_of(row: Row) -> str:
    """The largest error in short, or nothing."""
    return "" if row.largest_error is None else f"{row.largest_error:.1e}"


def compiled_of(row: Row) -> str:
    """The cell of the compiled column."""
    return SYMBOLS[row.compiled] if row.compiled else ""


def told_of(result: CheckResult) -> list[str]:
    """What was tried: the samples, what isn't taken, and the range of all values."""
    lines = [*result.samples, *result.left_out]
    return [*lines, result.range] if result.range else lines


def notes_of(row: Row) -> str:
    """What is wrong and what to do, as one paragraph."""
    remedy = f" -> {row.remedy}" if row.remedy else ""
    return f"{row.detail}{remedy}"


def summary_of(result: CheckResult) -> str:
    """The last line."""
    counts = dict.fromkeys(SYMBOLS, 0)
    for row in result.rows:
        counts[row.status] += 1
    parts = [f"{count} {status}" for status, count in counts.items() if count]
    verdict = "ok" if result.ok else "FAILED"
    return f"{result.name}: {verdict} ({', '.join(parts)}; seed {result.seed})"


def as_text(result: CheckResult) -> str:
    """The table in plain characters, as wide as the terminal."""
    width = max((len(row.name) for row in result.rows), default=4)
    notes_width = max(30, shutil.get_terminal_size((100, 24)).columns - width - 30)
    lines = [f"{result.name}", *[f"  {line}" for line in told_of(result)], ""]
    lines.append(f"{'check':<{width}}  {'':<5}  {'compiled':<8}  {'error':>8}  notes")
    said: set[str] = set()
    for row in result.rows:
        text = "as above" if notes_of(row) in said else notes_of(row)
        said |= {notes_of(row)} - {""}
        notes = textwrap.wrap(text, notes_width) or [""]
        head = f"{row.name:<{width}}  {SYMBOLS[row.status]:<5}  {compiled_of(row):<8}  "
        head += f"{error_of(row):>8}  "
        lines.append((head + notes[0]).rstrip())
        lines += [" " * len(head) + note for note in notes[1:]]
    return "\n".join([*lines, "", summary_of(result)])


def as_rich(result: CheckResult) -> Any:
    """The table for a rich console.

    Raises:
        ImportError: rich is not installed.
    """
    from rich.console import Group
    from rich.table import Table
    from rich.text import Text

    table = Table(title=result.name, caption=summary_of(result), title_justify="left")
    for heading in ("check", "", "compiled", "error", "notes"):
        table.add_column(heading, overflow="fold")
    for row in result.rows:
        symbol = Text(SYMBOLS[row.status], style=COLOURS[row.status])
        compiled = Text(compiled_of(row), style=COLOURS.get(row.compiled, ""))
        table.add_row(row.name, symbol, compiled, error_of(row), Text(notes_of(row)))
    return Group(*[Text(line, style="dim") for line in told_of(result)], table)


def as_json(result: CheckResult) -> str:
    """The result as a JSON document."""
    return json.dumps(result.as_dict(), indent=2)


def as_html(*results: CheckResult) -> str:
    """The tables of one or more results as a page of its own."""
    names = ", ".join(result.name for result in results)
    return (
        '<!doctype html><meta charset="utf-8">'
        f"<title>{html.escape(names)}</title>"
        "<style>body{font-family:sans-serif;margin:2em;color:#222;background:#fff}"
        "td,th{padding:.3em .6em;text-align:left}</style>"
        f"{''.join(map(_section, results))}\n"
    )


def as_fragment(result: CheckResult) -> str:
    """The table as a piece of a page, for notebooks; the samples are folded."""
    return f'<div style="overflow-x:auto">{_section(result, folded=True)}</div>'


def _section(result: CheckResult, *, folded: bool = False) -> str:
    body = []
    for row in result.rows:
        shown = (row.name, row.status, row.compiled, error_of(row), notes_of(row))
        cells = "".join(f"<td>{html.escape(cell)}</td>" for cell in shown)
        cells += f"<td>{row.seconds:.2f}</td>"
        # Its own text colour, since the page's may be light.
        body.append(f'<tr style="background:{SHADES[row.status]};color:#222">{cells}</tr>')
    lines = "".join(f"<li><code>{html.escape(line)}</code></li>" for line in told_of(result))
    headings = ("check", "status", "compiled", "error", "notes", "s")
    samples = f"<ul>{lines}</ul>"
    head = f"<h1>{html.escape(result.name)}</h1>"
    if folded:
        head = f"<b>{html.escape(result.name)}</b>"
        samples = f"<details><summary>{len(result.samples)} samples</summary>{samples}</details>"
    return (
        f"{head}{samples}"
        f'<table cellpadding="3">'
        f"<tr>{''.join(f'<th>{heading}</th>' for heading in headings)}</tr>"
        f"{''.join(body)}</table><p>{html.escape(summary_of(result))}</p>"
    )
