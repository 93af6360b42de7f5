"""Reports as HTML, for notebooks: graphs are folded, bytes and times are bars."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from html import escape
from typing import TYPE_CHECKING

from funcaot.report import markup
from funcaot.report.markup import code, folded, word

if TYPE_CHECKING:
    from funcaot.report.records import (
        DerivativeReport,
        EntryReport,
        GraphReport,
        Report,
        ResidualReport,
    )

# Rows of a table of residuals; the record has all of them.
_SHOWN = 50
# What IPython calls a cell.
_CELL = re.compile(r"<ipython-input-(\d+)-\w+>")


def of_report(report: Report) -> str:
    """A report, its newest entry unfolded."""
    return markup.framed(*_report(report))


def of_entry(entry: EntryReport) -> str:
    """One entry."""
    return markup.framed(*_entry(entry, code(f"({entry.signature})"), opened=True))


def of_graph(graph: GraphReport) -> str:
    """One graph, unfolded."""
    return markup.framed(_graph(graph, opened=True))


def of_derivative(derivative: DerivativeReport) -> str:
    """One derivative, unfolded."""
    return markup.framed(_derivative(derivative, opened=True))


def _report(report: Report) -> Iterator[str]:
    counts = (
        (len(report.entries), word("signature", "signature(s)")),
        (report.graphs_compiled, word("graph", "graph(s)") + " compiled"),
        (report.graphs_shared, word("shared")),
        (report.backward_traces, word("backward", "backward(s)") + " traced"),
        (report.cache_hits, word("cache hit", "cache hit(s)")),
        (report.cache_misses, word("miss", "miss(es)")),
    )
    told = ", ".join(f"{count} {name}" for count, name in counts)
    yield f"<div><b>{escape(report.name)}</b>: backend {escape(report.backend)}, {told}</div>"
    last = len(report.entries) - 1
    for number, entry in enumerate(report.entries):
        head = f"[{number}] {code(f'({entry.signature})')}"
        yield from _entry(entry, head, opened=number == last)
    for reason in report.refused:
        yield f"<div>runs as it is, uncompiled: {escape(reason)}</div>"
    for transformed in report.transformed:
        yield folded(f"<b>{escape(transformed.name)}</b>", *_report(transformed))


def _entry(entry: EntryReport, head: str, *, opened: bool) -> Iterator[str]:
    parts: list[str] = []
    if entry.reason:
        parts.append(f"<div>made because of a change: {code(entry.reason)}</div>")
    if entry.guards:
        guards = f"{word('guard', 'guards')}: {code(' and '.join(entry.guards))}"
        parts.append(f"<div>{guards}</div>")
    if entry.closed:
        parts.append(f"<div>for these sizes only: {escape(entry.closed)}</div>")
    if entry.mutations:
        inside = f", inside the graph {list(entry.in_place)}" if entry.in_place else ""
        overwritten = f"overwrites inputs {list(entry.mutations)}{inside}"
        parts.append(f"<div>{word('mutation')}: {overwritten}</div>")
    if entry.checks:
        reads = f"reads {len(entry.checks)} thing(s) besides its arguments"
        parts.append(folded(f"{word('check', 'checks')}: {reads}", markup.lines_of(entry.checks)))
    parts += [_graph(graph) for graph in entry.graphs]
    parts.append(residuals_table(entry.residuals))
    parts += [_derivative(each) for each in (*entry.backwards, *entry.pushforwards)]
    parts.append(markup.timings(entry.timings))
    yield folded(head, *parts, opened=opened)


def residuals_table(residuals: Sequence[ResidualReport]) -> str:
    """What a forward keeps, the largest first, with bars as long as bytes."""
    if not residuals:
        return ""
    ordered = sorted(residuals, key=lambda each: -each.bytes)
    most, total = ordered[0].bytes, sum(each.bytes for each in residuals)
    rows = [
        (
            code(each.name),
            code(f"{str(each.dtype).removeprefix('torch.')}{list(each.shape)}"),
            f"{each.bytes:,}" if each.origin == "intermediate" else f"an {each.origin}",
            markup.bar(each.bytes / most) if most else "",
            "" if each.source is None else escape(_CELL.sub(r"In [\1]", str(each.source))),
            escape(each.reason),
        )
        for each in ordered[:_SHOWN]
    ]
    left = len(ordered) - _SHOWN
    more = f"<div>... and {left} smaller ones</div>" if left > 0 else ""
    summary = f"keeps {len(residuals)} {word('residual', 'residuals')}, {total:,} bytes"
    head = ("value", "", "bytes", "", "made at", "why it is kept")
    return folded(summary, markup.table(head, rows), more, opened=True)


def _graph(graph: GraphReport, *, opened: bool = False) -> str:
    ops = sum(1 for node in graph.graph.graph.nodes if node.op == "call_function")
    state = f"run by {graph.compiler}" if graph.compiler else "not run yet"
    opaque = [f"{word('opaque')}: {code(each)}" for each in graph.opaque]
    summary = f"{word('graph')} {code(graph.name)}: {ops} ops, {escape(state)}"
    return folded(
        "<br>".join([summary, *opaque]),
        markup.timings(graph.timings),
        markup.graph_code(graph.graph),
        *(_graph(derived) for derived in graph.derived),
        opened=opened,
    )


def _derivative(derivative: DerivativeReport, *, opened: bool = False) -> str:
    tangents = ", ".join("None" if spec is None else str(spec) for spec in derivative.tangents)
    order = ", can be differentiated again" if derivative.create_graph else ""
    name = derivative.kind
    kind = word(name) if name in ("backward", "pushforward") else escape(name)
    return folded(
        f"{kind} for {code(f'({tangents})')}{order}",
        *map(_graph, derivative.graphs),
        *map(_derivative, derivative.derivatives),
        markup.timings(derivative.timings),
        opened=opened,
    )
