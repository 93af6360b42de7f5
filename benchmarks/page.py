"""The docs page of the benchmarks: tables and figures from the JSON files under docs/benchmarks.

Run ``python benchmarks/page.py`` after the others; figures need the extra ``draw``.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

from common import RESULTS, parser_of

WHOS = ("eager", "torch.compile", "funcaot", "jax.jit")


def read(name: str) -> dict[str, Any] | None:
    path = RESULTS / f"{name}.json"
    return json.loads(path.read_text()) if path.exists() else None


def table(head: list[str], rows: list[list[str]]) -> list[str]:
    lines = ["| " + " | ".join(head) + " |", "|" + "---|" * len(head)]
    return [*lines, *("| " + " | ".join(row) + " |" for row in rows), ""]


def written(*times: float) -> list[str]:
    return [f"{time:.2f}" for time in times]


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
            f"{made['ratio_of_fastest']:.3f}",
        ]
        for name, made in content["models"].items()
    ]
    bars = {name: made["milliseconds"] for name, made in content["models"].items()}
    draw_bars("training", bars, "milliseconds per training step")
    return [
        "## A training step",
        "",
        "Milliseconds per step with AdamW, contestants in turns in one process. The ratio is the "
        "median over rounds of funcaot's time by torch.compile's; beside it, that of the fastest "
        "rounds.",
        "",
        *table(["model", *WHOS[:3], "funcaot/torch.compile", "fastest rounds"], rows),
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
        [
            name,
            who,
            *written(times["first"], times["second"]),
            f"{times['first'] / times['second']:.1f}",
        ]
        for name, by_who in content["warm"].items()
        for who, times in by_who.items()
    ]
    points = [
        [who, str(point["operations"]), *written(point["forward"], point["backward"])]
        for who, curve in content["curves"].items()
        for point in curve
    ]
    draw_curves(content["curves"])
    return [
        "## Cold start",
        "",
        "CPU seconds until the first result in a fresh process, caches off, one C++ compiler at a "
        "time, the compilers' time included. Neither compiles a backward that isn't asked for, and "
        "most of the rest is the C++ compiler's, on kernels that are nearly the same; what differs "
        "is what is traced.",
        "",
        *table(["model, call", "torch.compile", "funcaot", "ratio"], rows),
        "With Inductor's on-disk cache, CPU seconds for forward and backward in a first process "
        "and in a second one:",
        "",
        *table(["model", "", "first", "second", "times faster"], warm),
        "Wall-clock seconds per stage:",
        "",
        *table(["model, call", "stage", "seconds"], stages),
        "CPU seconds for chains of operations. Own stages are everything but Inductor: capture, "
        "partition, decomposition.",
        "",
        *table(["", "operations", "forward", "backward"], points),
        "![Compile time by number of operations](benchmarks/cold_start.svg)",
        "",
        measured_on(content),
        "",
    ]


def residuals(content: dict[str, Any]) -> list[str]:
    columns = ("eager", "torch.compile", "balanced", "memory", "save_all")
    rows = [
        [row["model"], *(f"{row[column] / 1e3:.1f}" for column in columns)]
        for row in content["rows"]
    ]
    return [
        "## What a forward keeps",
        "",
        "kB that a training forward keeps for its backward, inputs and parameters left out: what "
        "autograd's graph holds. The last three columns are funcaot's policies.",
        "",
        *table(["model", *columns], rows),
        measured_on(content),
        "",
    ]


def operator(content: dict[str, Any]) -> list[str]:
    rows = [
        [
            name,
            *written(times["torch"], times["funcaot"]),
            f"{times['funcaot'] / times['torch']:.2f}",
        ]
        for name, times in content["microseconds"].items()
    ]
    draw_bars("operator", content["microseconds"], "microseconds per call", ("torch", "funcaot"))
    return [
        "## What a Function costs",
        "",
        "Microseconds per call of `funcaot.Function.apply` and `torch.autograd.Function.apply`, "
        "nothing compiled, one thread; the best of many rounds in turns.",
        "",
        *table(["call", "torch", "funcaot", "ratio"], rows),
        "![Time per call of a Function](benchmarks/operator.svg)",
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


def draw_bars(
    name: str, bars: dict[str, dict[str, float]], label: str, whos: Sequence[str] = WHOS
) -> None:
    plt = plots()
    if plt is None:
        return
    figure, axes = plt.subplots(figsize=(8, 0.5 + 0.55 * len(bars)))
    height = 0.8 / len(whos)
    for offset, who in enumerate(whos):
        places = [index for index, times in enumerate(bars.values()) if who in times]
        if places:
            widths = [times[who] for times in bars.values() if who in times]
            axes.barh([place + offset * height for place in places], widths, height, label=who)
    axes.set_yticks([index + 0.3 for index in range(len(bars))], list(bars))
    axes.set_xscale("log")
    axes.set_xlabel(label)
    axes.invert_yaxis()
    axes.legend()
    save(figure, name)


def draw_curves(curves: dict[str, list[dict[str, float]]]) -> None:
    plt = plots()
    if plt is None:
        return
    figure, axes = plt.subplots(figsize=(6, 4))
    for who, points in curves.items():
        counts = [point["operations"] for point in points]
        seconds = [point["forward"] + point["backward"] for point in points]
        label = "funcaot without Inductor" if who == "own stages" else who
        axes.plot(counts, seconds, marker="o", label=label)
    axes.set_xlabel("operations")
    axes.set_ylabel("CPU seconds, forward and backward")
    axes.legend()
    save(figure, "cold_start")


def save(figure: Any, name: str) -> None:
    figure.tight_layout()
    path = RESULTS / f"{name}.svg"
    figure.savefig(path, metadata={"Date": None})
    # Lines without trailing blanks, which matplotlib leaves.
    path.write_text("\n".join(line.rstrip() for line in path.read_text().splitlines()) + "\n")
    plots().close(figure)


SECTIONS = {
    "call_path": call_path,
    "training": training,
    "cold_start": cold_start,
    "residuals": residuals,
    "operator": operator,
}


def main() -> None:
    parser_of(__doc__).parse_args()
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
