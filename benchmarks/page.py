"""The docs page of the benchmarks: tables and figures from the JSON files under docs/benchmarks.

Run ``python benchmarks/page.py`` after the others; figures need the extra ``draw``.
"""

from __future__ import annotations

import json
from typing import Any

from common import RESULTS

WHOS = ("eager", "torch.compile", "funcaot", "jax.jit")


def read(name: str) -> dict[str, Any] | None:
    path = RESULTS / f"{name}.json"
    return json.loads(path.read_text()) if path.exists() else None


def table(head: list[str], rows: list[list[str]]) -> list[str]:
    lines = ["| " + " | ".join(head) + " |", "|" + "---|" * len(head)]
    return [*lines, *("| " + " | ".join(row) + " |" for row in rows), ""]


def measured_on(content: dict[str, Any]) -> str:
    machine = content["environment"]
    versions = ", ".join(f"{name} {version}" for name, version in machine["versions"].items())
    return f"Measured on {machine['processor']}, {machine['cores']} cores, with {versions}."


def call_path(content: dict[str, Any]) -> list[str]:
    cases = content["microseconds"]
    rows = [
        [case, kind, *(f"{times[who]:.1f}" if who in times else "" for who in WHOS)]
        for case, kinds in cases.items()
        for kind, times in kinds.items()
    ]
    bars = {
        f"{case}, {kind}": times for case, kinds in cases.items() for kind, times in kinds.items()
    }
    draw_bars("call_path", bars, "CPU microseconds per call")
    return [
        "## What a call costs",
        "",
        "CPU microseconds per call on tensors so small that nothing else counts, one thread, all "
        "in one process.",
        "",
        *table(["case", "call", *WHOS], rows),
        "![CPU time per call](benchmarks/call_path.svg)",
        "",
        measured_on(content),
        "",
    ]


def training(content: dict[str, Any]) -> list[str]:
    rows = [
        [
            name,
            *(f"{made['milliseconds'][who]:.2f}" for who in WHOS[:3]),
            f"{made['ratio']:.3f}",
        ]
        for name, made in content["models"].items()
    ]
    bars = {name: made["milliseconds"] for name, made in content["models"].items()}
    draw_bars("training", bars, "milliseconds per training step")
    return [
        "## A training step",
        "",
        "Milliseconds per step with AdamW, contestants in turns in one process. The ratio is the "
        "median over rounds of funcaot's time by torch.compile's.",
        "",
        *table(["model", *WHOS[:3], "funcaot/torch.compile"], rows),
        "![Time of a training step](benchmarks/training.svg)",
        "",
        measured_on(content),
        "",
    ]


def cold_start(content: dict[str, Any]) -> list[str]:
    rows = [
        [
            name,
            *(f"{made[who]['cpu']:.1f}" for who in ("torch.compile", "funcaot")),
            f"{made['funcaot']['cpu'] / made['torch.compile']['cpu']:.2f}",
        ]
        for name, made in content["models"].items()
    ]
    stages = [
        [name, stage, f"{seconds:.2f}"]
        for name, made in content["models"].items()
        for stage, seconds in made["funcaot"]["stages"].items()
    ]
    warm = [
        [name, f"{made['first']:.1f}", f"{made['second']:.1f}"]
        for name, made in content["warm"].items()
    ]
    points = [
        [str(point["operations"]), f"{point['forward']:.2f}", f"{point['backward']:.2f}"]
        for point in content["curve"]
    ]
    draw_curve(content["curve"])
    return [
        "## Cold start",
        "",
        "CPU seconds until the first result in a fresh process, caches off, one C++ compiler at a "
        "time. A forward alone traces and compiles no backward.",
        "",
        *table(["model, call", "torch.compile", "funcaot", "ratio"], rows),
        "With Inductor's on-disk cache, CPU seconds for forward and backward in a first process "
        "and in a second one:",
        "",
        *table(["model", "first", "second"], warm),
        "Seconds per stage:",
        "",
        *table(["model, call", "stage", "seconds"], stages),
        "Seconds of funcaot's own stages for chains of operations, without Inductor:",
        "",
        *table(["operations", "forward", "backward"], points),
        "![Compile time by number of operations](benchmarks/cold_start.svg)",
        "",
        measured_on(content),
        "",
    ]


def plots() -> Any:
    """matplotlib, or None where it isn't installed."""
    try:
        import matplotlib as mpl
    except ImportError:
        return None
    mpl.use("Agg")
    mpl.rcParams["svg.hashsalt"] = "funcaot"
    import matplotlib.pyplot as plt

    return plt


def draw_bars(name: str, bars: dict[str, dict[str, float]], label: str) -> None:
    plt = plots()
    if plt is None:
        return
    figure, axes = plt.subplots(figsize=(8, 0.5 + 0.55 * len(bars)))
    height = 0.8 / len(WHOS)
    for offset, who in enumerate(WHOS):
        places = [index for index, times in enumerate(bars.values()) if who in times]
        if places:
            widths = [times[who] for times in bars.values() if who in times]
            axes.barh([place + offset * height for place in places], widths, height, label=who)
    axes.set_yticks([index + 0.3 for index in range(len(bars))], list(bars))
    axes.set_xscale("log")
    axes.set_xlabel(label)
    axes.invert_yaxis()
    axes.legend()
    figure.tight_layout()
    figure.savefig(RESULTS / f"{name}.svg", metadata={"Date": None})
    plt.close(figure)


def draw_curve(points: list[dict[str, float]]) -> None:
    plt = plots()
    if plt is None:
        return
    figure, axes = plt.subplots(figsize=(6, 4))
    counts = [point["operations"] for point in points]
    for kind in ("forward", "backward"):
        axes.plot(counts, [point[kind] for point in points], marker="o", label=kind)
    axes.set_xlabel("operations")
    axes.set_ylabel("seconds")
    axes.legend()
    figure.tight_layout()
    figure.savefig(RESULTS / "cold_start.svg", metadata={"Date": None})
    plt.close(figure)


SECTIONS = {"call_path": call_path, "training": training, "cold_start": cold_start}


def main() -> None:
    lines = [
        "# Benchmarks",
        "",
        "Generated by `make bench` from `docs/benchmarks/*.json`; don't edit.",
        "",
    ]
    for name, section in SECTIONS.items():
        content = read(name)
        if content is not None:
            lines += section(content)
    page = RESULTS.parent / "benchmarks.md"
    page.write_text("\n".join(lines).rstrip() + "\n")
    print(f"wrote {page}")


if __name__ == "__main__":
    main()
