"""A report as text."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from funcaot.report.records import DerivativeReport, EntryReport, GraphReport, Report

# Residuals listed in the text; the record has all of them.
_SHOWN = 20


def render(report: Report) -> str:
    """The summary that ``print(funcaot.report(f))`` shows."""
    lines = [
        f"{report.name}: backend {report.backend}, {len(report.entries)} signature(s), "
        f"{report.graphs_compiled} graph(s) compiled, {report.graphs_shared} shared, "
        f"{report.backward_traces} backward(s) traced, "
        f"{report.cache_hits} cache hit(s), {report.cache_misses} miss(es)"
    ]
    for number, entry in enumerate(report.entries):
        lines += _entry(number, entry)
    lines += [f"  runs as it is, uncompiled: {each}" for each in report.refused]
    for transformed in report.transformed:
        lines.append(f"  {transformed.name}: {len(transformed.entries)} signature(s)")
        for number, entry in enumerate(transformed.entries):
            lines += [f"  {line}" for line in _entry(number, entry)]
    return "\n".join(lines)


def _entry(number: int, entry: EntryReport) -> Iterator[str]:
    yield f"  [{number}] ({_shortened(str(entry.signature))})"
    if entry.reason:
        yield f"      made because of a change: {_shortened(entry.reason)}"
    if entry.source:
        yield f"      loaded from {entry.source}"
    if entry.checks:
        yield f"      reads {len(entry.checks)} thing(s) besides its arguments (see .checks)"
    if entry.guards:
        yield f"      if {_shortened(' and '.join(entry.guards))}"
    if entry.closed:
        yield f"      for these sizes only: {_shortened(entry.closed)}"
    for graph in entry.graphs:
        yield from _graph(graph, "      ")
    if entry.mutations:
        inside = f", inside the graph {list(entry.in_place)}" if entry.in_place else ""
        yield f"      mutates inputs {list(entry.mutations)}{inside}"
    if entry.residuals:
        intermediates = [item for item in entry.residuals if item.origin == "intermediate"]
        yield (
            f"      keeps {len(entry.residuals)} values for the backward, "
            f"{len(intermediates)} of them computed, {entry.residual_bytes:,} bytes"
        )
        for residual in sorted(intermediates, key=lambda item: -item.bytes)[:_SHOWN]:
            yield f"        {residual}"
        if len(intermediates) > _SHOWN:
            yield f"        ... and {len(intermediates) - _SHOWN} smaller ones"
    for communication in entry.communication:
        yield f"      communication of {communication}"
    for derivative in (*entry.backwards, *entry.pushforwards):
        yield from _derivative(derivative, "      ")
    if entry.timings:
        yield "      " + _timings(entry.timings)


def _graph(graph: GraphReport, indent: str) -> Iterator[str]:
    ops = sum(1 for node in graph.graph.graph.nodes if node.op == "call_function")
    state = f"run by {graph.compiler}" if graph.compiler else "not run yet"
    yield f"{indent}{graph.name}: {ops} ops, {state}, {_timings(graph.timings)}"
    for opaque in graph.opaque:
        yield f"{indent}  opaque, runs on real values: {opaque}"
    for derived in graph.derived:
        yield from _graph(derived, indent + "  ")


def _derivative(derivative: DerivativeReport, indent: str) -> Iterator[str]:
    tangents = ", ".join("None" if spec is None else str(spec) for spec in derivative.tangents)
    order = ", differentiable" if derivative.create_graph else ""
    yield f"{indent}{derivative.kind} for ({_shortened(tangents)}){order}"
    for graph in derivative.graphs:
        yield from _graph(graph, indent + "  ")
    for following in derivative.derivatives:
        yield from _derivative(following, indent + "  ")


def _timings(timings: dict[str, float]) -> str:
    return ", ".join(f"{stage} {seconds * 1e3:.1f} ms" for stage, seconds in timings.items())


def _shortened(text: str, limit: int = 120) -> str:
    return text if len(text) <= limit else f"{text[: limit - 3]}..."
