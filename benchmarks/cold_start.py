"""Time until the first result, caches off, and how it grows with the number of operations.

Every number comes from a fresh process that has compiled one trivial function before, so that
imports aren't counted; seconds of CPU time, the C++ compilers that it starts included, and of
wall-clock time. Contestants run at the same time, a processor each, so that they see the same
machine. Run ``python benchmarks/cold_start.py``.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import torch
from common import (
    Clock,
    Failures,
    Target,
    environment_of,
    parser_of,
    print_table,
    print_targets,
    progress,
    write_json,
)
from models import models

import funcaot
from funcaot.backends import inductor

OPERATIONS = (100, 300, 1000, 3000, 10_000)
WITH_INDUCTOR = (100, 300)
AIMS = {"forward only": 0.7, "forward + backward": 1.0}
WARM_AIM = 1 / 3  # "several times faster"
TIMEOUT = 300  # seconds for one process
LINEAR_AIM = 1.25  # time per operation at the end of the curve, by that a decade before
WRAPPERS = {"torch.compile": torch.compile, "funcaot": funcaot.compile}


def cpu_seconds() -> float:
    times = os.times()
    return times.user + times.system + times.children_user + times.children_system


def chain(count: int) -> Any:
    def function(x):
        for _ in range(count // 2):
            x = (x * 1.5).sin()
        return x

    return function


def child(who: str, model_name: str, *, backward: bool) -> dict[str, Any]:
    """One measurement, in this process."""
    wrap = WRAPPERS[who]
    x = torch.ones(8, requires_grad=True)
    warm = wrap(lambda x: x.exp().sum())
    warm(x).backward() if backward else warm(x)
    model, arguments = models()[model_name]
    compiled = wrap(model)
    wall, used = time.perf_counter(), cpu_seconds()
    loss = compiled(*arguments)
    if backward:
        loss.backward()
    result: dict[str, Any] = {
        "wall": time.perf_counter() - wall,
        "cpu": cpu_seconds() - used,
        "stages": {},
    }
    if who == "funcaot":
        (entry,) = funcaot.report(compiled).entries
        result["stages"] = dict(entry.timings)
        for graph in entry.graphs:
            result["stages"][f"{graph.name}: lower"] = sum(graph.timings.values())
        for derivative in entry.backwards:
            result["stages"]["backward: trace"] = sum(derivative.timings.values())
            for graph in derivative.graphs:
                result["stages"]["backward: lower"] = sum(graph.timings.values())
    return result


def own_stages(function: Any) -> Any:
    """Everything that funcaot does to give a graph to Inductor, which then runs as it is."""
    return funcaot.aot_function(
        function, lambda graph, inputs: graph, decompositions=inductor.COMPILER.decompositions()
    )


CURVES = {"own stages": own_stages, **WRAPPERS}


def curve(who: str, counts: Sequence[int]) -> list[dict[str, float]]:
    """CPU seconds for chains of operations, C++ compilers included."""
    points = []
    for count in (10, *counts):  # the first loads what the others need
        x = torch.ones(3, requires_grad=True)
        compiled = CURVES[who](chain(count))
        start = cpu_seconds()
        loss = compiled(x).sum()
        middle = cpu_seconds()
        loss.backward()
        end = cpu_seconds()
        points.append({"operations": count, "forward": middle - start, "backward": end - middle})
    return points[1:]


def curves(failures: Failures, *, quick: bool) -> dict[str, list[dict[str, float]]]:
    """The points for each way to compile; those that fail are left out."""

    def curve_of(who: str) -> Any:
        counts = OPERATIONS if who == "own stages" else WITH_INDUCTOR
        arguments = ("--curve", who, *map(str, counts[: 1 if quick else None]))
        return failures.attempt(f"curve of {who}", in_fresh_process, *arguments)

    progress("chains of operations")
    return {who: made for who, made in at_once(curve_of, CURVES).items() if made is not None}


def at_once(measure: Callable[[str], Any], whos: Iterable[str]) -> dict[str, Any]:
    """Measure the contestants at the same time, as far as there are processors."""
    processors = len(os.sched_getaffinity(0))
    with ThreadPoolExecutor(max_workers=min(processors, len(list(whos)))) as pool:
        return dict(zip(whos, pool.map(measure, whos), strict=True))


def in_fresh_process(*arguments: str, cache: str | None = None) -> Any:
    """Run this script again; with the caches in a folder that is kept, or without them."""
    with tempfile.TemporaryDirectory() as folder:
        environment = {
            **os.environ,
            "TORCHINDUCTOR_FORCE_DISABLE_CACHES": "0" if cache else "1",
            "TORCHINDUCTOR_CACHE_DIR": cache or folder,
            "TORCHINDUCTOR_COMPILE_THREADS": "1",
        }
        done = subprocess.run(
            [sys.executable, os.path.abspath(__file__), *arguments],
            env=environment,
            capture_output=True,
            text=True,
            check=False,
            timeout=TIMEOUT,
        )
    if done.returncode:
        raise RuntimeError((done.stderr.splitlines() or ["no message"])[-1])
    return json.loads(done.stdout.splitlines()[-1])


def second_process(who: str, model: str) -> dict[str, float]:
    """Seconds of CPU time for forward and backward in a first process and in a second."""
    arguments = ("--child", who, model, "backward")
    with tempfile.TemporaryDirectory() as folder:
        first, second = (in_fresh_process(*arguments, cache=folder)["cpu"] for _ in range(2))
    return {"first": first, "second": second}


def main() -> None:
    parser = parser_of(__doc__)
    parser.add_argument("--child", nargs=3, metavar=("WHO", "MODEL", "KIND"))
    parser.add_argument("--curve", nargs="+", metavar=("WHO", "COUNT"))
    options = parser.parse_args()
    if options.child:
        who, model, kind = options.child
        print(json.dumps(child(who, model, backward=kind == "backward")))
        return
    if options.curve:
        who, *counts = options.curve
        print(json.dumps(curve(who, [int(count) for count in counts])))
        return
    chosen = [name for name in models() if name.startswith("MLP") or not options.quick]
    failures = Failures()
    clock = Clock(options.minutes)
    results = cold(chosen, failures)
    made = {} if clock.is_over("curves") else curves(failures, quick=options.quick)
    show_curves(made)
    warm = second([name for name in chosen if "CNN" not in name], failures, clock)
    content = {
        "environment": environment_of(),
        "models": results,
        "warm": warm,
        "curves": made,
        "failures": failures.messages,
        "targets": print_targets(targets_of(results, warm, made)),
    }
    write_json("cold_start", content)


def targets_of(
    results: dict[str, Any], warm: dict[str, Any], made: dict[str, list[dict[str, float]]]
) -> list[Target]:
    """What was aimed at, as far as it was measured."""
    found = [
        Target(name, "torch.compile", by["funcaot"]["cpu"] / by["torch.compile"]["cpu"], limit)
        for name, by in results.items()
        for kind, limit in AIMS.items()
        if name.endswith(kind) and len(by) == len(WRAPPERS)
    ]
    found += [
        Target(f"{model}, second process", "first process", t["second"] / t["first"], WARM_AIM)
        for model, by in warm.items()
        if (t := by.get("funcaot"))
    ]
    each = {
        int(point["operations"]): (point["forward"] + point["backward"]) / point["operations"]
        for point in made.get("own stages", ())
    }
    if {1000, 10_000} <= set(each):
        grown = each[10_000] / each[1000]
        found.append(Target("per operation of 10,000", "of 1,000", grown, LINEAR_AIM))
    return found


def cold(chosen: Sequence[str], failures: Failures) -> dict[str, Any]:
    results: dict[str, Any] = {}
    rows = []
    for model in chosen:
        for kind, label in (("forward", "forward only"), ("backward", "forward + backward")):
            progress(f"{model}, {label}, caches off")

            def measure(who: str, model: str = model, kind: str = kind) -> Any:
                arguments = ("--child", who, model, kind)
                return failures.attempt(f"{who}, {model}, {kind}", in_fresh_process, *arguments)

            made = {who: found for who, found in at_once(measure, WRAPPERS).items() if found}
            results[f"{model}, {label}"] = made
            seconds = [f"{made[who]['cpu']:.1f}" if who in made else "" for who in WRAPPERS]
            ratios = ["", ""]
            if len(made) == len(WRAPPERS):
                ours, theirs = made["funcaot"], made["torch.compile"]
                ratios = [f"{ours[clock] / theirs[clock]:.2f}" for clock in ("cpu", "wall")]
            rows.append([model, label, *seconds, *ratios])
    head = ["model", "call", *WRAPPERS, "ratio of CPU", "ratio of wall clock"]
    print_table("CPU seconds until the first result, caches off", head, rows)
    return results


def second(chosen: Sequence[str], failures: Failures, clock: Clock) -> dict[str, Any]:
    warm: dict[str, Any] = {}
    rows = []
    for model in chosen:
        if clock.is_over(f"{model}, caches on"):
            continue
        progress(f"{model}, caches on")

        def measure(who: str, model: str = model) -> Any:
            return failures.attempt(f"{who}, {model}, twice", second_process, who, model)

        warm[model] = {who: found for who, found in at_once(measure, WRAPPERS).items() if found}
        for who, times in warm[model].items():
            faster = times["first"] / times["second"]
            row = [f"{times['first']:.1f}", f"{times['second']:.2f}", f"{faster:.1f}"]
            rows.append([model, who, *row])
    head = ["model", "", "first process", "second process", "times faster"]
    print_table("CPU seconds for forward and backward, caches on", head, rows)
    return warm


def show_curves(made: dict[str, list[dict[str, float]]]) -> None:
    rows = [
        [
            who,
            str(point["operations"]),
            f"{point['forward']:.2f}",
            f"{point['backward']:.2f}",
            f"{(point['forward'] + point['backward']) / point['operations'] * 1e3:.2f}",
        ]
        for who, points in made.items()
        for point in points
    ]
    head = ["", "operations", "forward, s", "backward, s", "ms per operation"]
    print_table("CPU seconds by number of operations, caches off", head, rows)


if __name__ == "__main__":
    main()
