"""A training step of other people's force fields, with forces: eager, funcaot and others in turns.

Each library has a process of its own, with its compilers' caches off. A step is the loss of
energies and forces, its backward, and Adam, which is eager in all. A time is CPU time of all
threads, which other work on the machine disturbs little but for threads that wait for each other,
and time by the clock, which it disturbs much.

    python benchmarks/third_party/force_fields.py [--only MACE ...] [--threads 2] [--ways eager ...]

Runs in the environment of ``make test-third-party``; a library that isn't installed is left out.
"""

from __future__ import annotations

import importlib.metadata
import importlib.util
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

sys.path.append(str(Path(__file__).resolve().parent.parent))

import torch
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
from potentials import POTENTIALS, Potential

import funcaot

# What is measured together, in this order: each with eager mode in turns.
WAYS = ("eager", "funcaot", "the library's own", "torch.compile")
CLOCKS = ("cpu", "wall")
FIRST_AIM, OPEN_AIM = 30.0, 1.5  # seconds for MACE's first program; its open one by that
ROUNDS, SECONDS = 12, 25.0  # rounds at most, and how long they may take


def clocks() -> dict[str, float]:
    """CPU seconds, those of the compilers that were started included, and seconds."""
    return {"cpu": sum(os.times()[:4]), "wall": time.perf_counter()}


def since(began: dict[str, float]) -> dict[str, float]:
    return {name: now - began[name] for name, now in clocks().items()}


def trainer(way: str, potential: Potential) -> Callable[[Any], torch.Tensor]:
    """A function that makes one step with a batch and returns the loss."""
    make, _, loss = potential.parts()
    if way == "the library's own":
        model = potential.own()
        function = loss
    else:
        model = make()
        compiler = {"funcaot": funcaot.compile, "torch.compile": torch.compile}.get(way)
        function = loss if compiler is None else compiler(lambda _, inputs: loss(model, inputs))
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-4)

    def step(inputs: Any) -> torch.Tensor:
        found = function(model if way in ("eager", "the library's own") else None, inputs)
        optimizer.zero_grad()
        found.backward()
        optimizer.step()
        return found.detach()

    return step


def start(way: str, potential: Potential, inputs: list[Any]) -> tuple[Any, dict[str, Any]]:
    """The step of a way, warm, and what its first steps took and lost; or why it doesn't run."""
    found: dict[str, Any] = {}
    try:
        step = trainer(way, potential)
        losses = []
        for name, batch in zip(("first", "open"), inputs, strict=True):
            began = clocks()
            losses.append(float(step(batch)))
            found[name] = since(began)
            taken = ", ".join(f"{found[name][clock]:.1f} s {clock}" for clock in CLOCKS)
            progress(f"{way}, {name} size: {taken}")
        # TorchScript, in eager mode, compiles in the steps that follow.
        losses += [float(step(inputs[index % 2])) for index in range(4)]
        found["losses"] = losses
    except Exception as error:  # noqa: BLE001 (whatever it raises is the answer)
        lines = str(error).splitlines() or [""]
        return None, {"refusal": f"{type(error).__name__}: {lines[0][:160]}"}
    return step, found


def measure(steps: dict[str, Any], batch: Any, rounds: int) -> dict[str, dict[str, list[float]]]:
    """Milliseconds of a step by each clock, the ways in turns."""
    times: dict[str, dict[str, list[float]]] = {way: {name: [] for name in CLOCKS} for way in steps}
    deadline = time.monotonic() + SECONDS
    turns = list(steps.items())
    counts = {}
    for way, step in turns:
        began = time.perf_counter()
        step(batch)
        counts[way] = 3 if time.perf_counter() - began < 0.3 else 1
    for index in range(rounds):
        if index >= 2 and time.monotonic() > deadline:
            break
        turns.append(turns.pop(0))  # nobody always goes first
        for way, step in turns:
            if counts[way] > 1:
                step(batch)  # its data are then where it wants them
            began = {"cpu": time.process_time(), "wall": time.perf_counter()}
            for _ in range(counts[way]):
                step(batch)
            taken = {
                "cpu": time.process_time() - began["cpu"],
                "wall": time.perf_counter() - began["wall"],
            }
            for clock, seconds in taken.items():
                times[way][clock].append(1e3 * seconds / counts[way])
    return times


def child(name: str, options: Any) -> dict[str, Any]:
    """All ways of a library, in this process."""
    processors = sorted(os.sched_getaffinity(0))
    os.sched_setaffinity(0, processors[-options.threads :])
    torch.set_num_threads(options.threads)
    warnings.simplefilter("ignore")
    potential = POTENTIALS[name]
    batch_of = potential.parts()[1]
    inputs = [batch_of(0), batch_of(1)]
    x = torch.ones(8, requires_grad=True)
    funcaot.compile(lambda x: x.exp().sum())(x).backward()  # so that imports aren't counted
    ways: dict[str, dict[str, Any]] = {}
    eager, ways["eager"] = start("eager", potential, inputs)
    for way in options.ways:
        if way == "eager" or (way == "the library's own" and potential.own is None):
            continue
        progress(f"{name}: {way}")
        step, ways[way] = start(way, potential, inputs)
        if step is not None:
            steps = {"eager": eager, way: step}
            for each, times in measure(steps, inputs[0], 2 if options.quick else ROUNDS).items():
                ways[each][f"beside {way}"] = times
        print(json.dumps(ways), flush=True)  # what there is, should time be up in the next way
    return ways


def ratio(ways: dict[str, Any], way: str, clock: str) -> float | None:
    """A way's time by that of eager mode: the median over the rounds."""
    both = [ways[each].get(f"beside {way}", {}).get(clock) for each in (way, "eager")]
    if not all(both):
        return None
    return statistics.median(a / b for a, b in zip(*both, strict=True))


# --- in the process that was started -------------------------------------------------------------


def run(name: str, options: Any) -> dict[str, Any]:
    """What a process of its own found; what it had found so far, if time was up."""
    potential = POTENTIALS[name]
    if missing := [each for each in potential.modules if importlib.util.find_spec(each) is None]:
        return {"missing": missing}
    command = [sys.executable, os.path.abspath(__file__), "--child", name]
    command += ["--threads", str(options.threads), "--ways", *options.ways]
    command += ["--quick"] if options.quick else []
    with tempfile.TemporaryDirectory() as folder:
        environment = {
            **os.environ,
            "TORCHINDUCTOR_FORCE_DISABLE_CACHES": "1",
            "TORCHINDUCTOR_CACHE_DIR": folder,
            "TORCHINDUCTOR_COMPILE_THREADS": str(options.threads),
            "OMP_NUM_THREADS": str(options.threads),
        }
        process = subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, text=True)
        try:
            printed, _ = process.communicate(timeout=options.timeout)
            error = f"the process ended with {process.returncode}" if process.returncode else ""
        except subprocess.TimeoutExpired:
            process.kill()
            printed, _ = process.communicate()
            error = f"not ready after {options.timeout:.0f} s"
    lines = [line for line in printed.splitlines() if line.startswith("{")]
    found: dict[str, Any] = {"ways": json.loads(lines[-1]) if lines else {}}
    return found | ({"error": error} if error else {})


def rows_of(name: str, found: dict[str, Any]) -> list[list[str]]:
    """A row for each way of a library."""
    if "missing" in found:
        return [[name, "", f"not installed: {', '.join(found['missing'])}"]]
    rows = []
    for way, made in found["ways"].items():
        if "refusal" in made:
            rows.append([name, way, made["refusal"][:70]])
            continue
        row = [name, way]
        for clock in CLOCKS:
            samples = next((v[clock] for k, v in made.items() if k.startswith("beside")), None)
            row.append(f"{statistics.median(samples):.1f}" if samples else found.get("error", ""))
            by_eager = ratio(found["ways"], way, clock)
            row.append("" if by_eager is None else f"{by_eager:.2f}")
        row += [f"{made[which][clock]:.1f}" for which in ("first", "open") for clock in CLOCKS]
        row.append(f"{gap(found['ways'], way):.0e}")
        rows.append(row)
    if not rows or "error" in found:
        rows.append([name, "", found.get("error", "")])
    return rows


def gap(ways: dict[str, Any], way: str) -> float:
    """The largest relative difference of a way's losses from the first one's."""
    first = next(made["losses"] for made in ways.values() if "losses" in made)
    pairs = zip(ways[way]["losses"], first, strict=True)
    return max(abs(a - b) / max(abs(b), 1e-8) for a, b in pairs)


def targets_of(results: dict[str, Any]) -> list[Target]:
    """What was aimed at, by CPU time and by the clock."""
    targets = []
    for name, found in results.items():
        ways = found.get("ways", {})
        for clock in CLOCKS:
            by_eager = ratio(ways, "funcaot", clock) if "funcaot" in ways else None
            if by_eager is not None:
                aim = POTENTIALS[name].aim
                targets.append(Target(f"{name}, a step, {clock}", "eager", by_eager, aim))
            made = ways.get("funcaot", {})
            if name == "MACE" and "open" in made:
                first, second = made["first"][clock], made["open"][clock]
                by_first = second / first
                targets += [
                    Target(f"MACE, first program, {clock}", "seconds", first, FIRST_AIM),
                    Target(f"MACE, open sizes, {clock}", "first program", by_first, OPEN_AIM),
                ]
    return targets


HEAD = (
    *("library", "way", "ms, cpu", "by eager", "ms, clock", "by eager"),
    *("first, s cpu", "clock", "second size, s cpu", "clock", "loss differs by"),
)


def main() -> None:
    parser = parser_of(__doc__)
    parser.add_argument("--only", nargs="+", choices=POTENTIALS, default=list(POTENTIALS))
    parser.add_argument("--ways", nargs="+", choices=WAYS, default=list(WAYS))
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--timeout", type=float, default=300, help="seconds for one library")
    parser.add_argument("--child", choices=POTENTIALS)
    parser.set_defaults(minutes=5.0)
    options = parser.parse_args()
    if options.child:
        print(json.dumps(child(options.child, options)), flush=True)
        return
    if options.quick:
        options.only = options.only[:1]
    options.threads = min(options.threads, len(os.sched_getaffinity(0)))
    results: dict[str, Any] = {}
    clock = Clock(options.minutes)
    for name in options.only:
        if not clock.is_over(name):
            results[name] = run(name, options)
            print_table(
                name,
                HEAD,
                [(row + [""] * len(HEAD))[: len(HEAD)] for row in rows_of(name, results[name])],
            )
    installed = {
        each.distribution: importlib.metadata.version(each.distribution)
        for name, each in POTENTIALS.items()
        if "ways" in results.get(name, {})
    }
    if not installed:
        return
    content = {
        "environment": environment_of() | {"threads": options.threads},
        "libraries": installed,
        "results": results,
        "targets": print_targets(targets_of(results)),
    }
    write_json("force_fields", content)


if __name__ == "__main__":
    main()
