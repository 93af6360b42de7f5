"""Reading a report off a compiled function."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import Any

import torch

from funcaot._torch.dynamo.dynamo_functions import compiled_in
from funcaot.aot.calls.call import SegmentFunctions
from funcaot.aot.calls.program import GraphProgram
from funcaot.aot.graph import graphs
from funcaot.aot.graph.tensor_spec import TensorSpec, spec_of
from funcaot.aot.runtime.artifact import LoadedEntry
from funcaot.aot.runtime.compiled import CompiledFunction
from funcaot.aot.runtime.entry import Entry
from funcaot.aot.runtime.module import functions_of
from funcaot.aot.segment.segment import Residual, Segment
from funcaot.errors import FuncaotError
from funcaot.report.communication import communication_of
from funcaot.report.records import (
    DerivativeReport,
    EntryReport,
    GraphReport,
    Report,
    ResidualReport,
)


def report(compiled: Any) -> Report:
    """Tell what was compiled.

    Args:
        compiled: What ``funcaot.compile`` returned: a function, a method or a module, whose units
            under ``fully_shard`` are reported as one. Or what ``torch.compile(...,
            backend="funcaot")`` returned, whose graphs are.

    Returns:
        A record; ``print`` it for a summary.

    Raises:
        FuncaotError: If ``compiled`` isn't compiled by funcaot.

    Example:
        >>> import funcaot, torch
        >>> f = funcaot.compile(lambda x: x.sin().sum(), backend="eager")
        >>> x = torch.ones(3, requires_grad=True)
        >>> y = f(x)
        >>> funcaot.report(f).backward_traces
        0
        >>> y.backward()
        >>> funcaot.report(f).backward_traces
        1
    """
    if hasattr(compiled, "_torchdynamo_orig_callable"):
        return _joined(compiled)
    units = functions_of(compiled) if isinstance(compiled, torch.nn.Module) else ()
    if len(units) > 1:
        return _together(type(compiled).__name__, [_report(unit) for unit in units])
    return _report(_function_of(compiled))


def _joined(compiled: Any) -> Report:
    """One report of the graphs that Dynamo made of a function."""
    original = compiled._torchdynamo_orig_callable
    reports = [_report(function) for function in compiled_in(compiled)]
    if not reports:
        raise FuncaotError(
            "funcaot.report found no graph that torch.compile compiled with funcaot.",
            expected='the result of torch.compile(..., backend="funcaot"), once called',
            got=type(compiled).__name__,
            remedy="call it first; a function that it calls after a graph break is compiled by "
            "itself: report on torch.compile of that.",
        )
    return _together(getattr(original, "__name__", type(original).__name__), reports)


def _together(name: str, reports: Sequence[Report]) -> Report:
    """One report of several functions."""
    totals = {
        item.name: sum(getattr(report, item.name) for report in reports)
        for item in dataclasses.fields(Report)
        if item.type in (int, "int")
    }
    return Report(
        name=name,
        backend=reports[0].backend,
        entries=tuple(entry for report in reports for entry in report.entries),
        transformed=tuple(part for report in reports for part in report.transformed),
        refused=tuple(reason for report in reports for reason in report.refused),
        **totals,
    )


def _report(function: CompiledFunction) -> Report:
    statistics = function.settings.statistics
    return Report(
        name=function.settings.name,
        backend=function.settings.compiler.name,
        graphs_compiled=statistics.graphs_compiled,
        graphs_shared=statistics.graphs_shared,
        backward_traces=statistics.backward_traces,
        cache_hits=function.cache_hits,
        cache_misses=statistics.cache_misses,
        entries=tuple(
            _entry(entry, function.size_refusal(entry.signature)) for entry in function.entries
        ),
        transformed=tuple(map(_report, function.stacked)),
        refused=function.refusals.told,
    )


def _function_of(compiled: Any) -> CompiledFunction:
    if isinstance(compiled, torch.nn.Module):
        found: Any = next(iter(functions_of(compiled)), None)
    else:
        found = getattr(compiled, "__func__", compiled)
    if not isinstance(found, CompiledFunction):
        raise FuncaotError(
            "funcaot.report needs something that funcaot compiled.",
            expected="the result of funcaot.compile, aot_function or aot_module",
            got=type(compiled).__name__,
            remedy="pass what funcaot.compile returned, not the original function.",
        )
    return found


def _entry(entry: Entry, refusal: str | None) -> EntryReport:
    if isinstance(entry, LoadedEntry):
        return _loaded(entry)
    made = entry.functions.made
    programs = [function.program for function in made]
    if entry.in_place is not None:
        programs = [entry.in_place.program, *programs]
    keeping = [function for function in made if function.keeping]
    return EntryReport(
        signature=entry.signature,
        forward_graph=programs[0].module if programs else None,
        graphs=tuple(map(_graph, programs)),
        residuals=tuple(
            residual_report(function.segment, residual)
            for function in keeping
            for residual in function.form.residuals
        ),
        mutations=tuple(mutation.index for mutation in entry.effects.mutations),
        aliases=tuple(str(output) for output in entry.effects.outputs),
        backwards=_derivatives(entry.functions, "backward"),
        pushforwards=_derivatives(entry.functions, "pushforward"),
        timings=dict(entry.forward.timings),
        reason=entry.reason,
        checks=() if entry.forward.reader is None else entry.forward.reader.checks,
        guards=() if entry.sizes is None else tuple(entry.sizes.conditions),
        closed=None if entry.sizes is not None else refusal,
        in_place=() if entry.in_place is None else entry.in_place.written,
        communication=communication_of(entry.functions),
    )


def _loaded(entry: LoadedEntry) -> EntryReport:
    """A program from a file: its graphs are there only if something asked for them."""
    return EntryReport(
        signature=entry.signature,
        forward_graph=None,
        graphs=(),
        residuals=(),
        mutations=tuple(mutation.index for mutation in entry.effects.mutations),
        aliases=tuple(str(output) for output in entry.effects.outputs),
        backwards=(),
        pushforwards=(),
        timings={},
        source=entry.source,
        checks=() if entry.forward.reader is None else entry.forward.reader.checks,
    )


def _graph(program: GraphProgram) -> GraphReport:
    return GraphReport(
        name=program.name,
        graph=program.module,
        compiler=_compiler(program),
        timings=dict(program.timings),
        derived=tuple(_graph(child) for child, _ in program.children.values()),
        opaque=tuple(
            f"{node.target.__name__} ({node.target.opaque.reason})"
            for node in program.module.graph.nodes
            if graphs.is_opaque(node)
        ),
    )


def _compiler(program: GraphProgram) -> str | None:
    if not program.is_compiled:
        return None
    lowered = program.lowered
    return f"{lowered.compiler}, shared" if lowered.shared else lowered.compiler


def residual_report(segment: Segment, residual: Residual) -> ResidualReport:
    """What a segment keeps, as a record."""
    value = graphs.value_of(residual.node)
    made = len(segment.output_nodes)
    if residual.operand is not None:
        origin = "input"
    elif residual.output is not None and residual.output < made:
        origin = "output"
    else:
        origin = "intermediate"
    return ResidualReport(
        name=residual.node.name,
        shape=spec_of(value).shape,
        dtype=value.dtype,
        bytes=graphs.bytes_of(value) if origin == "intermediate" else 0,
        origin=origin,
        op="input" if residual.node.op == "placeholder" else str(residual.node.target),
        source=residual.node.meta.get("source") if origin != "input" else None,
        reason=residual.reason,
        consumers=residual.consumers,
    )


def _derivatives(functions: SegmentFunctions, kind: str) -> tuple[DerivativeReport, ...]:
    """What was derived from the forms of a segment, as a tree."""
    reports = []
    for derivatives in [function.derivatives for function in functions.made]:
        if kind == "backward":
            for backward, following in derivatives.traced:
                key = backward.key
                reports.append(
                    _derivative(kind, key.tangents, key.create_graph, following, backward.timings)
                )
            continue
        for specs, (_, following) in derivatives.pushforwards.items():
            reports.append(_derivative(kind, specs, True, following, {}))
        for specs, (fused, following) in derivatives.fused.items():
            reports.append(_derivative("primal and tangent", specs, True, following, fused.timings))
    return tuple(reports)


def _programs(functions: SegmentFunctions) -> list[GraphProgram]:
    """The graphs of a derivative; of one that runs in parts, these."""
    programs = [item.program for item in functions.made]
    parts = functions.parts[0] if functions.parts else None
    if parts is None:
        return programs
    made = [part.program for part in parts.parts if part.program is not None]
    return [program for program in programs if program.is_compiled] + made


def _derivative(
    kind: str,
    tangents: tuple[TensorSpec | None, ...],
    create_graph: bool,
    following: SegmentFunctions,
    timings: dict[str, float],
) -> DerivativeReport:
    return DerivativeReport(
        kind,
        tangents,
        create_graph,
        tuple(map(_graph, _programs(following))),
        dict(timings),
        _derivatives(following, "backward") + _derivatives(following, "pushforward"),
    )
