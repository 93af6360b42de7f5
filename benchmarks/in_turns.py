"""A training step several ways, in turns, with one thread and with two.

For each number of threads a process of its own is pinned to as many processors, which is what fixes
JAX's threads too. The processes compile at the same time and are timed one after the other.
"""

from __future__ import annotations

import json
import os
import select
import statistics
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from common import (
    Clock,
    Target,
    environment_of,
    parser_of,
    print_table,
    print_targets,
    progress,
    write_json,
)

sys.path.append(str(Path(__file__).resolve().parent.parent / "examples"))
ROUNDS = 25
TRAINED = 300  # steps before the error against an exact solution is taken


@dataclass(frozen=True)
class Workload:
    """The ways to run a step, and what was aimed at: one way by another, and its share at most.

    ``random`` ones draw numbers that differ between the ways, so their losses aren't compared.
    """

    title: str
    makers: Callable[[], dict[str, Callable[[], Any]]]
    aims: tuple[tuple[str, str, float], ...] = ()
    random: bool = False
    steps: int = 40  # losses that are compared


def no_slower(way: str, *others: str) -> tuple[tuple[str, str, float], ...]:
    return tuple((way, other, 1.0) for other in others)


# --- in the process that measures ----------------------------------------------------------------


def child(workload: Workload, threads: int, *, quick: bool) -> None:
    """Compile and compare, say so, wait for one's turn, measure, and print what came out."""
    processors = sorted(os.sched_getaffinity(0))
    os.sched_setaffinity(0, processors[-threads:])  # before anything starts threads
    import torch

    torch.set_num_threads(threads)
    import side_by_side

    steps, rounds, trained = (3, 2, 3) if quick else (workload.steps, ROUNDS, TRAINED)
    ways: dict[str, dict[str, Any]] = {}
    running: dict[str, Any] = {}
    eager = None
    for way, make in workload.makers().items():
        started = side_by_side.start(make, steps)
        if started.step is None:
            ways[way] = {"refusal": started.refusal}
            continue
        eager = eager or started
        losses = [float(f"{loss:.5g}") for loss in started.losses]
        gap = 0.0 if workload.random else started.gap(eager)
        ways[way] = {"first_seconds": started.seconds, "losses": losses, "gap": gap}
        if hasattr(started.step, "error"):
            for index in range(steps, trained):
                started.step(index)
            ways[way]["error"] = started.step.error()
        running[way] = started.step
    print("ready", flush=True)
    sys.stdin.readline()
    samples = side_by_side.milliseconds(running, rounds)
    for way, times in samples.items():
        ways[way]["milliseconds"] = statistics.median(times)
        ways[way]["fastest"] = min(times)
        ways[way]["ratios"] = {
            other: side_by_side.ratio(samples, way, other) for other in running if other != way
        }
    product = product_microseconds() if "jax.jit" in running else {}
    print(json.dumps({"ways": ways, "product": product}), flush=True)


def product_microseconds() -> dict[str, float]:
    """Time of one matrix product in torch and in JAX: no compiler of torch's makes it faster."""
    import jax
    import torch

    import side_by_side

    a, b = torch.rand(256, 64), torch.rand(64, 256)
    arrays = [jax.numpy.asarray(each.numpy()) for each in (a, b)]
    product = jax.jit(jax.numpy.matmul)
    steps = {
        "torch": lambda index: torch.mm(a, b),
        "jax": lambda index: product(*arrays).block_until_ready(),
    }
    samples = side_by_side.milliseconds(steps, 9, seconds=0.005)
    return {name: 1e3 * statistics.median(times) for name, times in samples.items()}


# --- in the process that was started -------------------------------------------------------------


class Child:
    """A process that measures one workload with one number of threads."""

    def __init__(self, name: str, threads: int, options: Any) -> None:
        command = [sys.executable, sys.argv[0], "--child", name, str(threads)]
        command += ["--quick"] if options.quick else []
        environment = {
            "TORCHINDUCTOR_COMPILE_THREADS": "1",
            "JAX_PLATFORMS": "cpu",
            "OMP_NUM_THREADS": str(threads),
        }
        self.process = subprocess.Popen(
            command,
            env={**os.environ, **environment},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )

    def line(self, seconds: float) -> str:
        """The next line that the process prints; an error if none comes in time."""
        stream = self.process.stdout
        if not select.select([stream], [], [], seconds)[0]:
            self.process.kill()
            raise TimeoutError(f"nothing came in {seconds:.0f} s")
        line = stream.readline()
        if not line:
            raise RuntimeError(f"the process ended with {self.process.wait()}")
        return line

    def measure(self) -> dict[str, Any]:
        """Let the process measure, now that no other one runs, and end it.

        By itself it would take some seconds for that, while the next one measures.
        """
        self.process.stdin.write("go\n")
        self.process.stdin.flush()
        line = self.line(120)
        self.end()
        return json.loads(line)

    def end(self) -> None:
        """Kill the process, if it still is there."""
        self.process.kill()
        self.process.wait()


def run(name: str, options: Any) -> dict[str, Any]:
    """What each number of threads gave: ways, or what went wrong."""
    found: dict[str, Any] = {}
    children = {threads: Child(name, threads, options) for threads in options.threads}
    try:
        deadline = time.monotonic() + options.timeout
        for threads, process in children.items():
            try:
                process.line(max(deadline - time.monotonic(), 1))
            except (TimeoutError, RuntimeError) as error:
                found[str(threads)] = {"error": str(error)}
        for threads, process in children.items():
            if str(threads) in found:
                continue
            try:
                found[str(threads)] = process.measure()
            except (TimeoutError, RuntimeError) as error:
                found[str(threads)] = {"error": str(error)}
    finally:
        for process in children.values():
            process.end()
    return found


def ratio(ways: dict[str, Any], way: str, other: str) -> float | None:
    """One way's time by another's: the median over rounds; None if one of them didn't run."""
    return ways.get(way, {}).get("ratios", {}).get(other)


def targets_of(name: str, workload: Workload, made: dict[str, Any]) -> list[Target]:
    """What was aimed at, for each number of threads."""
    return [
        Target(f"{name}, {threads} thread(s), {way}", other, found, limit)
        for threads, measured in made.items()
        for way, other, limit in workload.aims
        if (found := ratio(measured.get("ways", {}), way, other)) is not None
    ]


def table_of(made: dict[str, Any]) -> tuple[list[str], list[list[str]]]:
    """Head and rows: milliseconds, and how many times as fast as eager and as JAX."""
    names = {way: None for measured in made.values() for way in measured.get("ways", {})}
    others = [other for other in ("eager", "jax.jit") if other in names]
    head = ["way"]
    for threads in made:
        head += [f"ms, {threads} thread(s)", *(f"{other} / way" for other in others)]
    rows = [[way] for way in names]
    for measured in made.values():
        ways = measured.get("ways", {})
        for row in rows:
            result = ways.get(row[0], {})
            time = result.get("milliseconds")
            reason = result.get("refusal", measured.get("error", "")).partition(":")[0]
            row.append(reason if time is None else f"{time:.3f}")
            ratios = (ratio(ways, row[0], other) for other in others)
            row += ["" if each is None else f"{1 / each:.2f}" for each in ratios]
    head.append("loss differs by")
    for row in rows:
        all_ways = [measured.get("ways", {}).get(row[0], {}) for measured in made.values()]
        gaps = [result["gap"] for result in all_ways if "gap" in result]
        row.append(f"{max(gaps):.0e}" if gaps else "")
    return head, rows


def main(script: str, description: str | None, workloads: dict[str, Workload]) -> None:
    """The command line of a script that measures ``workloads`` and writes ``script``'s JSON."""
    parser = parser_of(description)
    parser.add_argument("--threads", type=int, nargs="+", default=[1, 2])
    parser.add_argument("--only", nargs="+", choices=workloads, default=list(workloads))
    parser.add_argument("--timeout", type=float, default=240, help="seconds until all is compiled")
    parser.add_argument("--child", nargs=2, metavar=("NAME", "THREADS"))
    parser.set_defaults(minutes=6.0)
    options = parser.parse_args()
    if options.child:
        name, threads = options.child
        child(workloads[name], int(threads), quick=options.quick)
        return
    if options.quick:
        options.only = list(workloads)[-1:]
    processors = len(os.sched_getaffinity(0))
    options.threads = [threads for threads in options.threads if threads <= processors]
    results: dict[str, Any] = {}
    targets: list[Target] = []
    clock = Clock(options.minutes)
    for name in options.only:
        if clock.is_over(name):
            continue
        progress(name)
        results[name] = run(name, options)
        show(workloads[name], results[name])
        targets += targets_of(name, workloads[name], results[name])
    content = {
        "environment": environment_of(),
        "titles": {name: workloads[name].title for name in results},
        "workloads": results,
        "targets": print_targets(targets),
    }
    write_json(script, content)


def show(workload: Workload, made: dict[str, Any]) -> None:
    """Print a table, and below it why ways are missing and how right solutions are."""
    print_table(workload.title, *table_of(made))
    for line in remarks(made):
        print(line, flush=True)


def remarks(made: dict[str, Any]) -> list[str]:
    """Refusals, and errors against an exact solution; once for all numbers of threads."""
    found: dict[str, None] = {}
    for threads, measured in made.items():
        if "error" in measured:
            found[f"{threads} thread(s): {measured['error']}"] = None
        if product := measured.get("product"):
            times = ", ".join(f"{taken:.0f} µs in {name}" for name, taken in product.items())
            found[f"a product of 256x64 by 64x256, {threads} thread(s): {times}"] = None
        for way, result in measured.get("ways", {}).items():
            if "refusal" in result:
                found[f"{way}: {result['refusal']}"] = None
            if "error" in result:
                found[f"{way}: error {result['error']:.4f} against the exact solution"] = None
    return list(found)
