"""The docs page of the benchmarks: tables and figures from the JSON files under docs/benchmarks.

Run ``python benchmarks/page.py`` after the others; figures need the extra ``draw``.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

from common import RESULTS, TARGET_HEAD, Target, parser_of, target_rows
from figures import WHOS, draw_bars, draw_curves, draw_speedups, draw_workloads, slug
from in_turns import remarks, table_of


def read(name: str) -> dict[str, Any] | None:
    path = RESULTS / f"{name}.json"
    return json.loads(path.read_text()) if path.exists() else None


def table(head: Sequence[str], rows: Sequence[Sequence[str]]) -> list[str]:
    lines = ["| " + " | ".join(head) + " |", "|" + "---|" * len(head)]
    return [*lines, *("| " + " | ".join(row) + " |" for row in rows), ""]


def written(times: dict[str, float], whos: Sequence[str], digits: int = 2) -> list[str]:
    """A cell each; empty for those that didn't run."""
    return [f"{times[who]:.{digits}f}" if who in times else "" for who in whos]


def ratio(times: dict[str, float], one: str, other: str) -> str:
    return f"{times[one] / times[other]:.2f}" if {one, other} <= set(times) else ""


def notes(content: dict[str, Any]) -> list[str]:
    """What didn't run, and what it was measured on."""
    failed = [f"- {name}: `{text}`" for name, text in content.get("failures", {}).items()]
    machine = content["environment"]
    versions = ", ".join(f"{name} {version}" for name, version in machine["versions"].items())
    others = machine.get("others", 0.0)
    busy = f" Other processes took {others:.0%} of the machine." if others > 0.05 else ""
    return [
        *(["Didn't run:", "", *failed, ""] if failed else []),
        f"Measured on {machine['processor']}, {machine['cores']} cores, with {versions}.{busy}",
        "",
    ]


def call_path(content: dict[str, Any]) -> list[str]:
    cases = {
        (case, kind): times
        for case, kinds in content["microseconds"].items()
        for kind, times in kinds.items()
    }
    rows = [
        [*names, *written(times, WHOS, 1), ratio(times, "torch.compile", "funcaot")]
        for names, times in cases.items()
    ]
    bars = {", ".join(names): times for names, times in cases.items()}
    draw_bars("call_path", bars, "CPU microseconds per call")
    return [
        "## What a call costs",
        "",
        "CPU microseconds per call on tensors so small that nothing else counts, one thread, all "
        "in one process.",
        "",
        "![CPU time per call](benchmarks/call_path.svg)",
        "",
        *table(["case", "call", *WHOS, "torch.compile / funcaot"], rows),
        *([content["note"], ""] if "note" in content else []),
        *notes(content),
    ]


def steps(name: str, title: str, text: str, content: dict[str, Any]) -> list[str]:
    """A section on training steps: a figure and a table each."""
    lines = [f"## {title}", "", text, ""]
    for key, made in content["workloads"].items():
        heading = content["titles"][key]
        figure = f"![{heading}: losses, and times of a step](benchmarks/{slug(name, key)}.svg)"
        lines += [f"### {heading}", "", figure, "", *table(*table_of(made))]
        found = remarks(made)
        lines += [*(f"- {remark}" for remark in found), ""] if found else []
    draw_workloads(name, content)
    return [*lines, *notes(content)]


def training(content: dict[str, Any]) -> list[str]:
    text = (
        "Milliseconds per step: a compiled forward, its backward, and AdamW, which is eager in "
        "all of them. The contestants take turns in one process, pinned to as many processors as "
        "it has threads. What is compared are medians over the rounds. A loss may differ where "
        "random numbers do."
    )
    return steps("training", "A training step", text, content)


def workloads(content: dict[str, Any]) -> list[str]:
    text = (
        "Milliseconds per training step of the programs in `examples/`, the same mathematics in "
        'float32 from the same seed, measured in the same way. "eager / way" is how many times as '
        "fast as eager a way is; the last column is the largest relative difference of the loss "
        "from eager's over the first steps. `jax.jit` compiles the whole step, optimizer included."
    )
    return steps("workloads", "Real workloads", text, content)


def cold_start(content: dict[str, Any]) -> list[str]:
    whos = ("torch.compile", "funcaot")
    seconds = {
        name: {who: by_who["cpu"] for who, by_who in made.items()}
        for name, made in content["models"].items()
    }
    rows = [
        [name, *written(made, whos, 1), ratio(made, "funcaot", "torch.compile")]
        for name, made in seconds.items()
    ]
    stages = [
        [name, stage, f"{taken:.2f}"]
        for name, made in content["models"].items()
        for stage, taken in made.get("funcaot", {}).get("stages", {}).items()
    ]
    warm = [
        [name, who, *written(times, ("first", "second")), ratio(times, "first", "second")]
        for name, by_who in content["warm"].items()
        for who, times in by_who.items()
    ]
    points = [
        [who, str(point["operations"]), *written(point, ("forward", "backward"))]
        for who, curve in content["curves"].items()
        for point in curve
    ]
    draw_curves(content["curves"])
    return [
        "## Cold start",
        "",
        "CPU seconds until the first result in a fresh process, caches off, one C++ compiler at a "
        "time, the compilers' time included. Neither compiles a backward that isn't asked for. "
        "funcaot compiles the kernels of a graph as one C++ file, so headers are read once.",
        "",
        "![Compile time by number of operations](benchmarks/cold_start.svg)",
        "",
        *table(["model, call", *whos, "ratio"], rows),
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
        *notes(content),
    ]


def residuals(content: dict[str, Any]) -> list[str]:
    columns = ("eager", "torch.compile", "balanced", "memory", "save_all")
    kilobytes = {
        row["model"]: {column: row[column] / 1e3 for column in columns if column in row}
        for row in content["rows"]
    }
    rows = [[model, *written(kept, columns, 1)] for model, kept in kilobytes.items()]
    draw_bars("residuals", kilobytes, "kB kept for the backward", columns)
    return [
        "## What a forward keeps",
        "",
        "kB that a training forward keeps for its backward, inputs and parameters left out: what "
        "autograd's graph holds. The last three columns are funcaot's policies.",
        "",
        "![kB kept for the backward](benchmarks/residuals.svg)",
        "",
        *table(["model", *columns], rows),
        *notes(content),
    ]


def attention(content: dict[str, Any]) -> list[str]:
    """A section on the second order of attention."""
    whos = list(next(iter(content["seconds"].values())))
    math, *ours = whos
    columns = [*whos, *(f"{who} / {math}" for who in ours)]

    def rows(by_length: dict[str, dict[str, float]], digits: int) -> list[list[str]]:
        return [
            [length, *written(made, whos, digits), *(ratio(made, who, math) for who in ours)]
            for length, made in by_length.items()
        ]

    kept = [[way, str(size)] for way, size in content["kept"].items()]
    return [
        "## The second order of attention",
        "",
        "Forward, gradient and the gradient of its square, of one attention with 4 heads of 64 "
        "features in float32, on one thread. MB that it adds to a process at most:",
        "",
        *table(["tokens", *columns], rows(content["megabytes"], 0)),
        "CPU seconds, the best of some rounds in turns:",
        "",
        *table(["tokens", *columns], rows(content["seconds"], 2)),
        "Bytes that a first-order forward keeps, operands and output left out, at 1,024 tokens:",
        "",
        *table(["", "bytes"], kept),
        *notes(content),
    ]


def operator(content: dict[str, Any]) -> list[str]:
    whos = ("torch", "funcaot")
    rows = [
        [name, *written(times, whos), ratio(times, "funcaot", "torch")]
        for name, times in content["microseconds"].items()
    ]
    draw_bars("operator", content["microseconds"], "microseconds per call", whos)
    return [
        "## What a Function costs",
        "",
        "Microseconds per call of `funcaot.Function.apply` and `torch.autograd.Function.apply`, "
        "nothing compiled, one thread; the best of many rounds in turns.",
        "",
        "![Time per call of a Function](benchmarks/operator.svg)",
        "",
        *table(["call", *whos, "ratio"], rows),
        *notes(content),
    ]


def deploy(content: dict[str, Any]) -> list[str]:
    """A section on what is shipped: first gradients, and calls of an artifact."""
    whos = ("torch.compile", "funcaot", "funcaot, artifacts")
    gradients = [
        [name, *(f"{made[who]['cpu']:.2f}" if who in made else "" for who in whos)]
        for name, made in content["gradients"].items()
    ]
    calls = [[name, f"{value:.0f}"] for name, value in content["calls"].items()]
    of_calls = [
        "Microseconds per call of energy and forces of 27 atoms, one thread, in the fastest round; "
        "in C++ a step of molecular dynamics, and in ASE what a step asks of it, each with both "
        "packages.",
        "",
        *table(["way", "microseconds"], calls),
    ]
    return [
        "## Shipping",
        "",
        "CPU seconds from the first call to the first gradient in a second process, with what a "
        "first one left: caches on disk, or a file of `compiled.save`. Imports that a call makes "
        'are counted. `python benchmarks/deploy.py --only "GPT, 24 layers"` measures one of them.',
        "",
        *table(["model", *whos], gradients),
        *(of_calls if calls else []),
        *notes(content),
    ]


SECTIONS = {
    "call_path": call_path,
    "training": training,
    "workloads": workloads,
    "cold_start": cold_start,
    "deploy": deploy,
    "residuals": residuals,
    "operator": operator,
    "attention": attention,
}


def short_title(title: str) -> str:
    """A workload's name for the axis of a figure."""
    if title.startswith("Whole step, "):
        return title.removeprefix("Whole step, ")
    return title.removeprefix("A training step of the ").partition(", ")[0]


def at_a_glance(contents: dict[str, dict[str, Any]]) -> list[str]:
    """One figure of all training steps: the fastest way of each compiler, by eager."""
    speedups: dict[str, dict[str, float]] = {}
    for name in ("workloads", "training"):
        content = contents.get(name, {"workloads": {}, "titles": {}})
        for key, made in content["workloads"].items():
            ways = made.get("1", {}).get("ways", {})
            found = {
                who: [
                    1 / ways[way]["ratios"]["eager"]
                    for way in ways
                    if way.startswith(who) and "eager" in ways[way].get("ratios", {})
                ]
                for who in ("torch.compile", "funcaot", "jax.jit")
            }
            best = {who: max(times) for who, times in found.items() if times}
            if best:
                speedups[short_title(content["titles"][key])] = best
    if not speedups:
        return []
    draw_speedups(speedups)
    return [
        "Training steps, each the fastest way that a compiler has; a bar that is missing is a "
        "program that wasn't measured or that the compiler refuses (`torch.compile`: a double "
        "backward).",
        "",
        "![How many times as fast as eager: training steps](benchmarks/speedups.svg)",
        "",
    ]


def aims(contents: dict[str, dict[str, Any]]) -> list[str]:
    """What all benchmarks aimed at, beside what came out."""
    targets = [
        Target(**target) for content in contents.values() for target in content.get("targets", ())
    ]
    if not targets:
        return []
    met = sum(target.met for target in targets)
    return [
        "## What was aimed at",
        "",
        f"Of {len(targets)} aims {met} are met. A ratio is funcaot's time or bytes by the "
        "other's, in the same run.",
        "",
        *table(TARGET_HEAD, target_rows(targets)),
    ]


def main() -> None:
    parser_of(__doc__).parse_args()
    contents = {name: content for name in SECTIONS if (content := read(name)) is not None}
    lines = [
        "# Benchmarks",
        "",
        "Generated by `make bench` from `docs/benchmarks/*.json`; don't edit.",
        "",
        *at_a_glance(contents),
    ]
    for name, content in contents.items():
        lines += SECTIONS[name](content)
    lines += aims(contents)
    page = RESULTS.parent / "benchmarks.md"
    page.write_text("\n".join(lines).rstrip() + "\n")
    print(f"wrote {page}")


if __name__ == "__main__":
    main()
