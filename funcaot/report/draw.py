"""Pictures of reports, by Graphviz or matplotlib: ``Report.draw`` calls it."""

from __future__ import annotations

import shutil
import subprocess
from collections.abc import Sequence
from math import log10
from pathlib import Path
from typing import TYPE_CHECKING, Any

from funcaot.errors import FuncaotError
from funcaot.report import memory
from funcaot.report.picture import Box, Picture, parts_of, picture_of

if TYPE_CHECKING:
    from funcaot.report.records import DerivativeReport, EntryReport, GraphReport, Report

# Readable on a white page and on a dark one; backgrounds are transparent.
_GREY = "#7a8694"
_COLOURS = ("#4c78a8", "#f58518", "#54a24b", "#b279a2", "#e45756", "#72b7b2", "#9d755d", "#bab0ac")
# From few bytes to many.
_SHADES = ("#dbe9f6", "#bad6eb", "#89bedc", "#539ecd", "#2b7bba", "#0b559f")
_VIEW = "#c9d1d9"  # takes no memory of its own
_KEPT = "#f58518"
_DOTS_PER_INCH = 110
_LARGEST = 30000  # dots a side, for pictures of dots


def draw(report: Report, path: str | Path, what: str, entry: int) -> Path:
    """Draw one thing about a report into a file.

    Raises:
        FuncaotError: If there is nothing to draw, ``what`` is unknown, or what draws isn't there.
    """
    path = Path(path)
    if what not in ("graphs", "memory", "timeline"):
        raise FuncaotError(
            "A report was asked for a picture that it doesn't have.",
            expected='"graphs", "memory" or "timeline"',
            got=repr(what),
            remedy="leave `what` out for the graphs.",
        )
    try:
        chosen = report.entries[entry]
    except IndexError:
        raise FuncaotError(
            f"There is no entry {entry} to draw: {report.name} has {len(report.entries)}.",
            remedy="call the function first." if not report.entries else "choose one of these.",
        ) from None
    if what == "graphs":
        _draw_graphs(picture_of(chosen), path)
    elif what == "memory":
        _draw_memory(chosen, path)
    else:
        _draw_timeline(report, path)
    return path


# --- graphs ------------------------------------------------------------------------------------


def _draw_graphs(picture: Picture, path: Path) -> None:
    if path.suffix == ".dot":
        path.write_text(dot_of(picture))
        return
    graphviz = shutil.which("dot")
    if graphviz is None or path.suffix.lstrip(".") not in ("svg", "png", "pdf"):
        _graphs_by_matplotlib(picture, path)
        return
    command = [graphviz, f"-T{path.suffix.lstrip('.')}", "-o", str(path)]
    subprocess.run(command, input=dot_of(picture), text=True, check=True)


def dot_of(picture: Picture) -> str:
    """The picture in Graphviz's language."""
    most = max((box.bytes for box in picture.boxes.values()), default=0)
    lines = [
        "digraph {",
        f'label={_quoted(picture.title)} bgcolor="transparent" fontcolor="{_GREY}"',
        f'node [shape=box style="rounded,filled" fontname="sans-serif" color="{_GREY}"]',
        f'edge [color="{_GREY}"]',
    ]
    for index, title in enumerate(picture.parts):
        lines.append(f"subgraph cluster_{index} {{")
        lines.append(f'label={_quoted(title)} color="{_GREY}" fontcolor="{_GREY}"')
        lines += [
            _dot_box(box, most)
            for box in picture.boxes.values()
            if box.part == index and box.kind != "kept"
        ]
        lines.append("}")
    lines += [_dot_box(box, most) for box in picture.boxes.values() if box.kind == "kept"]
    lines += [f"{_quoted(source)} -> {_quoted(user)}" for source, user in picture.arrows]
    return "\n".join([*lines, "}"]) + "\n"


def _dot_box(box: Box, most: int) -> str:
    colour, ink = _colours(box, most)
    edge = f' color="{_KEPT}" penwidth=2' if box.kind == "kept" else ""
    label = _quoted("\n".join(_text(box)))
    return f'{_quoted(box.key)} [label={label} fillcolor="{colour}" fontcolor="{ink}"{edge}]'


def _quoted(text: str) -> str:
    escaped = text.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")
    return f'"{escaped}"'


def _text(box: Box) -> list[str]:
    size = [f"{box.bytes:,} bytes"] if box.bytes else []
    return [box.label, box.shape, *size]


def _colours(box: Box, most: int) -> tuple[str, str]:
    """Of a box and of the text in it."""
    if not box.bytes:
        return _VIEW, "#222222"
    share = log10(box.bytes + 1) / log10(most + 1)
    at = min(int(share**3 * len(_SHADES)), len(_SHADES) - 1)
    return _SHADES[at], "#222222" if at < 3 else "#ffffff"


def _columns(picture: Picture) -> dict[int, float]:
    """Where the middle of each graph is, from the left."""
    widths: dict[int, float] = {}
    for box in picture.boxes.values():
        widths[box.part] = max(widths.get(box.part, 0.0), abs(box.place) + 0.5)
    middles, left = {}, 0.0
    for index in range(len(picture.parts)):
        middles[index] = left + widths.get(index, 0.5)
        left = middles[index] + widths.get(index, 0.5) + 1.4
    return middles


def _graphs_by_matplotlib(picture: Picture, path: Path) -> None:
    """Forward from top to bottom, its backward beside it, from bottom to top, and so on."""
    middles = _columns(picture)
    rows = dict.fromkeys(middles, 0)
    for box in picture.boxes.values():
        rows[box.part] = max(rows[box.part], box.row)
    places: dict[str, tuple[float, float]] = {}
    for key, box in picture.boxes.items():
        if box.kind != "kept":
            down = box.row if box.part % 2 == 0 else rows[box.part] - box.row
            places[key] = (middles[box.part] + box.place, -float(down))
    places |= _kept_places(picture, middles)
    width = max((x for x, _ in places.values()), default=1.0) + 1
    lowest = min((y for _, y in places.values()), default=0.0)
    figure, axes = _figure(max(3.5, 1.7 * width), max(2.0, 0.8 * (2 - lowest)))
    axes.set_xlim(-0.4, width)
    axes.set_ylim(lowest - 0.8, 1.2)
    axes.axis("off")
    axes.set_title(_shortened(picture.title), fontsize=8, color=_GREY)
    for index, title in enumerate(picture.parts):
        axes.text(middles[index], 0.7, title, ha="center", fontsize=9, color=_GREY, weight="bold")
    for source, user in picture.arrows:
        kept = "kept." in source or "kept." in user
        style = {"color": _KEPT if kept else _GREY, "alpha": 0.7, "lw": 1.0, "arrowstyle": "->"}
        style |= {"shrinkA": 14, "shrinkB": 17}
        axes.annotate("", places[user], places[source], arrowprops=style)
    most = max((box.bytes for box in picture.boxes.values()), default=0)
    for key, box in picture.boxes.items():
        colour, ink = _colours(box, most)
        edge = _KEPT if box.kind == "kept" else _GREY
        round_box = {"boxstyle": "round,pad=0.35", "facecolor": colour, "edgecolor": edge}
        text = "\n".join(_text(box))
        around = {"ha": "center", "va": "center", "fontsize": 6, "color": ink}
        axes.text(*places[key], text, bbox=round_box, **around)
    _save(figure, path)


def _kept_places(picture: Picture, middles: dict[int, float]) -> dict[str, tuple[float, float]]:
    """To the right of the graph that makes a value, as high as it is there or just below others."""
    places: dict[str, tuple[float, float]] = {}
    lowest: dict[int, float] = {}
    kept = [box for box in picture.boxes.values() if box.kind == "kept"]
    for box in sorted(kept, key=lambda box: box.row):
        shown = [each for each in picture.boxes.values() if each.part == box.part]
        half = max(abs(each.place) + 0.5 for each in shown if each.kind != "kept")
        height = min(-float(box.row), lowest.get(box.part, 1.0) - 0.75)
        places[box.key] = (middles[box.part] + half + 0.7, height)
        lowest[box.part] = height
    return places


# --- memory ------------------------------------------------------------------------------------


def curve_of(entry: EntryReport) -> list[tuple[str, list[int]]]:
    """Bytes that results take while each op runs, graph after graph.

    What a graph returns, and what it keeps, counts until the last graph has run.
    """
    held, curves = 0, []
    for part in parts_of(entry):
        nodes = list(part.graph.graph.nodes)
        live = memory.live_bytes(nodes)
        steps = [
            held + taken
            for node, taken in zip(nodes, live, strict=True)
            if node.op == "call_function"
        ]
        curves.append((part.title, steps))
        held += live[-1] if live else 0
    return curves


def _draw_memory(entry: EntryReport, path: Path) -> None:
    figure, axes = _figure(6.5, 3.2)
    begin, highest = 0, 0
    curves = curve_of(entry)
    unit, scale = _unit(max((max(steps, default=0) for _, steps in curves), default=0))
    for index, (title, steps) in enumerate(curves):
        colour = _COLOURS[index % len(_COLOURS)]
        places = range(begin, begin + len(steps))
        heights = [taken / scale for taken in steps]
        axes.fill_between(places, heights, step="mid", alpha=0.35, color=colour, label=title)
        axes.step(places, heights, where="mid", color=colour, lw=1.2)
        begin += len(steps)
        highest = max(highest, *steps, 0)
    axes.set_title(f"at most {highest:,} bytes", fontsize=9, color=_GREY)
    axes.set_xlabel("ops, in the order in which they run")
    axes.set_ylabel(f"{unit} of results")
    axes.set_ylim(bottom=0)
    axes.legend(fontsize=7, frameon=False, labelcolor=_GREY)
    _save(figure, path)


def _unit(most: int) -> tuple[str, int]:
    for unit, scale in (("GB", 10**9), ("MB", 10**6), ("kB", 10**3)):
        if most >= scale:
            return unit, scale
    return "bytes", 1


# --- stages ------------------------------------------------------------------------------------


def stages_of(report: Report) -> list[tuple[str, dict[str, float]]]:
    """What was compiled, in order, with the seconds of each stage."""
    found: list[tuple[str, dict[str, float]]] = []
    for number, entry in enumerate(report.entries):
        found.append((f"[{number}] {report.name}", entry.timings))
        found += _graph_stages(entry.graphs)
        found += _derivative_stages((*entry.backwards, *entry.pushforwards))
    for transformed in report.transformed:
        found += stages_of(transformed)
    return [(name, seconds) for name, seconds in found if seconds]


def _graph_stages(graphs: Sequence[GraphReport]) -> list[tuple[str, dict[str, float]]]:
    found = []
    for graph in graphs:
        found.append((f"graph {graph.name}", graph.timings))
        found += _graph_stages(graph.derived)
    return found


def _derivative_stages(
    derivatives: Sequence[DerivativeReport],
) -> list[tuple[str, dict[str, float]]]:
    found: list[tuple[str, dict[str, float]]] = []
    for derivative in derivatives:
        found.append((derivative.kind, derivative.timings))
        found += _graph_stages(derivative.graphs)
        found += _derivative_stages(derivative.derivatives)
    return found


def _draw_timeline(report: Report, path: Path) -> None:
    """A row for each program, its stages as bars; each begins where the one above ended."""
    rows = stages_of(report)
    figure, axes = _figure(6.5, 1.2 + 0.35 * len(rows))
    totals: dict[str, float] = {}
    for _, seconds in rows:
        for stage, taken in seconds.items():
            totals[stage] = totals.get(stage, 0.0) + taken
    longest = sorted(totals, key=lambda stage: -totals[stage])[: len(_COLOURS) - 1]
    at, named = 0.0, set()
    for row, (_, seconds) in enumerate(rows):
        for stage, taken in seconds.items():
            shown = stage if stage in longest else "other stages"
            colour = _COLOURS[longest.index(stage)] if stage in longest else _COLOURS[-1]
            label = None if shown in named else shown
            axes.barh(row, taken, 0.7, left=at, color=colour, label=label)
            named.add(shown)
            at += taken
    axes.set_yticks(range(len(rows)), [_shortened(name, 40) for name, _ in rows])
    axes.invert_yaxis()
    axes.set_xlabel("seconds of compiling, waiting left out")
    axes.set_title(f"{report.name}: {at:.2f} s", fontsize=9, color=_GREY)
    if named:
        beside = {"loc": "upper left", "bbox_to_anchor": (1.01, 1.0)}
        axes.legend(fontsize=7, frameon=False, labelcolor=_GREY, **beside)
    _save(figure, path)


# --- matplotlib --------------------------------------------------------------------------------


def _figure(width: float, height: float) -> tuple[Any, Any]:
    try:
        from matplotlib.figure import Figure
    except ImportError:
        raise FuncaotError(
            "Pictures of a report are drawn by matplotlib, which isn't installed.",
            remedy='pip install "funcaot[draw]"; a path that ends in .dot needs nothing, and '
            "graphs are drawn by Graphviz where its command `dot` is found.",
        ) from None
    figure = Figure(figsize=(width, height), layout="constrained")
    figure.patch.set_alpha(0)
    axes = figure.subplots()
    axes.patch.set_alpha(0)
    for spine in axes.spines.values():
        spine.set_color(_GREY)
    axes.tick_params(colors=_GREY, labelsize=7)
    axes.xaxis.label.set_color(_GREY)
    axes.yaxis.label.set_color(_GREY)
    return figure, axes


def _save(figure: Any, path: Path) -> None:
    longest = max(figure.get_size_inches())
    dots = min(_DOTS_PER_INCH, _LARGEST / longest)
    try:
        figure.savefig(path, dpi=dots)
    except ValueError as error:
        raise FuncaotError(
            f"A picture can't be written to {path.name}: {error}.",
            remedy="let the path end in .svg, .png, .pdf or .dot.",
        ) from error


def _shortened(text: str, limit: int = 100) -> str:
    return text if len(text) <= limit else f"{text[: limit - 3]}..."
