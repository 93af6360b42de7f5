"""Show results: one as its table, several as a line each and the tables of those that fail."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import TextIO

from funcaot.testing.check import CheckResult
from funcaot.testing.check.rendering import as_html, as_json, as_rich, as_text, summary_of
from funcaot.testing.command.modules import Skipped


def show(
    results: Sequence[CheckResult],
    skipped: Sequence[Skipped],
    stream: TextIO,
    *,
    as_document: bool,
) -> None:
    """Prints JSON, coloured tables on a terminal that has rich, or plain text."""
    single = len(results) == 1 and not skipped
    if as_document:
        stream.write((as_json(results[0]) if single else several(results, skipped)) + "\n")
        return
    for result in results:
        if single or not result.ok or result.warnings():
            table(result, stream)
    if single:
        return
    stream.write("\n")
    for result in results:
        stream.write(f"{summary_of(result)}\n")
    for entry in skipped:
        stream.write(f"{entry.name}: not checked: {entry.reason}\n")
    failed = sum(not result.ok for result in results)
    stream.write(
        f"{len(results)} Function(s): {len(results) - failed} ok, {failed} FAILED, "
        f"{len(skipped)} not checked\n"
    )


def several(results: Sequence[CheckResult], skipped: Sequence[Skipped]) -> str:
    """The results as one JSON document."""
    return json.dumps(
        {
            "ok": all(result.ok for result in results),
            "results": [result.as_dict() for result in results],
            "skipped": [{"name": entry.name, "reason": entry.reason} for entry in skipped],
        },
        indent=2,
    )


def page(results: Sequence[CheckResult]) -> str:
    """The tables as a page."""
    return as_html(*results)


def table(result: CheckResult, stream: TextIO) -> None:
    """One table, in colours where the stream is a terminal and rich is installed."""
    if stream.isatty():
        try:
            from rich.console import Console

            Console(file=stream).print(as_rich(result))
            return
        except ImportError:
            pass
    stream.write(as_text(result) + "\n")
