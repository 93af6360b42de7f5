"""Time until the first result, caches off, and how it grows with the number of operations.

Every number comes from a fresh process that has compiled one trivial function before, so that
imports aren't counted; seconds of CPU time, the C++ compilers that it starts included, and of
wall-clock time. Run ``python benchmarks/cold_start.py``.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from typing import Any

import torch
from common import environment_of, print_table, write_json
from residuals import models

import funcaot

OPERATIONS = (100, 300, 1000, 3000, 10_000)
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


def curve() -> list[dict[str, float]]:
    """Seconds of funcaot's own stages for chains of operations, without Inductor."""
    points = []
    for count in OPERATIONS:
        x = torch.ones(3, requires_grad=True)
        compiled = funcaot.compile(chain(count), backend="eager")
        start = time.process_time()
        loss = compiled(x).sum()
        middle = time.process_time()
        loss.backward()
        end = time.process_time()
        points.append({"operations": count, "forward": middle - start, "backward": end - middle})
    return points


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
            check=True,
        )
    return json.loads(done.stdout.splitlines()[-1])


def second_process(model: str) -> dict[str, float]:
    """Seconds of CPU time for forward and backward in a first process and in a second."""
    arguments = ("--child", "funcaot", model, "backward")
    with tempfile.TemporaryDirectory() as folder:
        first, second = (in_fresh_process(*arguments, cache=folder)["cpu"] for _ in range(2))
    return {"first": first, "second": second}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--child", nargs=3, metavar=("WHO", "MODEL", "KIND"))
    parser.add_argument("--curve", action="store_true")
    options = parser.parse_args()
    if options.child:
        who, model, kind = options.child
        print(json.dumps(child(who, model, backward=kind == "backward")))
        return
    if options.curve:
        print(json.dumps(curve()))
        return
    results: dict[str, Any] = {}
    rows = []
    for model in models():
        for kind in ("forward", "backward"):
            made = {who: in_fresh_process("--child", who, model, kind) for who in WRAPPERS}
            results[f"{model}, {kind}"] = made
            ours, theirs = made["funcaot"], made["torch.compile"]
            label = "forward only" if kind == "forward" else "forward + backward"
            rows.append(
                [model, label]
                + [f"{made[who]['cpu']:.1f}" for who in WRAPPERS]
                + [f"{ours['cpu'] / theirs['cpu']:.2f}", f"{ours['wall'] / theirs['wall']:.2f}"]
            )
    head = ["model", "call", *WRAPPERS, "ratio of CPU", "ratio of wall clock"]
    print_table("CPU seconds until the first result, caches off", head, rows)
    warm = {model: second_process(model) for model in models()}
    rows = [
        [
            model,
            f"{made['first']:.1f}",
            f"{made['second']:.1f}",
            f"{made['first'] / made['second']:.1f}",
        ]
        for model, made in warm.items()
    ]
    head = ["model", "first process", "second process", "times faster"]
    print_table("CPU seconds for forward and backward, caches on", head, rows)
    points = in_fresh_process("--curve")
    rows = [
        [
            str(point["operations"]),
            f"{point['forward']:.2f}",
            f"{point['backward']:.2f}",
            f"{(point['forward'] + point['backward']) / point['operations'] * 1e3:.2f}",
        ]
        for point in points
    ]
    head = ["operations", "forward, s", "backward, s", "ms per operation"]
    print_table("funcaot's own stages, without Inductor", head, rows)
    content = {"environment": environment_of(), "models": results, "warm": warm, "curve": points}
    write_json("cold_start", content)


if __name__ == "__main__":
    main()
