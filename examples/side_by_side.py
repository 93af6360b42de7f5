"""Run the same step several ways: the same losses from the same seed, and the time of a step."""

from __future__ import annotations

import argparse
import gc
import statistics
import time
import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import matplotlib as mpl

mpl.use("Agg")
import matplotlib.pyplot as plt
import torch
from rich.console import Console
from rich.table import Table

console = Console(highlight=False, width=100)
Step = Callable[[int], float]
Makers = dict[str, Callable[[], Step]]


@dataclass(frozen=True)
class Started:
    """A way of running the step: what it lost so far, or why it doesn't run."""

    step: Step | None
    losses: tuple[float, ...] = ()
    seconds: float = 0.0
    refusal: str = ""

    def gap(self, other: Started) -> float:
        """Largest relative difference between the two loss curves."""
        pairs = zip(self.losses, other.losses, strict=True)
        return max(abs(a - b) / max(abs(b), 1e-8) for a, b in pairs)


def start(make: Callable[[], Step], steps: int) -> Started:
    """Make a way and run its first steps; whatever it raises is its refusal."""
    began = time.perf_counter()
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            step = make()
            losses = tuple(float(step(index)) for index in range(steps))
    except Exception as error:  # noqa: BLE001 (whatever it raises is the answer)
        lines = str(error).splitlines() or [""]
        return Started(None, refusal=f"{type(error).__name__}: {lines[0][:70]}")
    return Started(step, losses, time.perf_counter() - began)


def milliseconds(
    steps: dict[str, Step], rounds: int, seconds: float = 0.02, limit: float = 20.0
) -> dict[str, list[float]]:
    """Time of a step in each round, the ways taken in turn so that they see the same machine.

    In every round a way runs for about ``seconds``, after one step that isn't timed: its data are
    then where it wants them, whatever ran before. On a busy machine there are fewer rounds than
    asked for: none begins after ``limit`` seconds, but three.
    """
    deadline = time.perf_counter() + limit
    counts: dict[str, int] = {}
    for name, step in steps.items():
        began = time.perf_counter()
        for index in range(5):
            step(index)
        counts[name] = max(2, int(seconds / ((time.perf_counter() - began) / 5)))
    times: dict[str, list[float]] = {name: [] for name in steps}
    turns = list(steps.items())
    gc.collect()
    for index in range(rounds):
        if index >= 3 and time.perf_counter() > deadline:
            break
        turns.append(turns.pop(0))  # nobody always goes first
        for name, step in turns:
            step(0)
            began = time.perf_counter()
            for at in range(counts[name]):
                step(at)
            times[name].append((time.perf_counter() - began) / counts[name] * 1e3)
    return times


def ratio(times: dict[str, Sequence[float]], name: str, other: str) -> float:
    """How many times as long one way takes as another: the median over the rounds."""
    return statistics.median(a / b for a, b in zip(times[name], times[other], strict=True))


def compare(
    title: str,
    makers: Makers,
    *,
    steps: int,
    rounds: int,
    figure: Path | None,
    tolerance: float = 1e-3,
) -> dict[str, float]:
    """Check the loss curves against eager, time a step, print a table, draw a figure.

    Returns:
        Milliseconds per step of each way that runs.
    """
    table = Table("way", "ms per step", "eager / way", "largest loss difference", title=title)
    started = {name: start(make, steps) for name, make in makers.items()}
    running = {name: way.step for name, way in started.items() if way.step is not None}
    samples = milliseconds(running, rounds)
    times = {name: statistics.median(values) for name, values in samples.items()}
    for name, way in started.items():
        if way.step is None:
            table.add_row(name, "-", "-", way.refusal)
            continue
        gap = way.gap(started["eager"])
        faster = 1 / ratio(samples, name, "eager")
        table.add_row(name, f"{times[name]:.3f}", f"{faster:.2f}", f"{gap:.1e}")
        if gap > tolerance:
            raise SystemExit(f"{name} doesn't train like eager: {gap:.1e}")
    console.print(table)
    if figure is not None:
        draw(title, {name: started[name].losses for name in running}, times, figure)
    return times


def command_line(description: str, *, steps: int, rounds: int) -> argparse.ArgumentParser:
    """What every example can be told."""
    parser = argparse.ArgumentParser(description=description.splitlines()[0])
    parser.add_argument("--steps", type=int, default=steps)
    parser.add_argument("--rounds", type=int, default=rounds)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--backend", default="inductor")
    parser.add_argument("--figure", type=Path, help="default: build/ and the example's name")
    return parser


def compare_as_told(
    title: str,
    name: str,
    makers: Makers,
    told: argparse.Namespace,
    *,
    steps: int | None = None,
) -> None:
    """Compare the ways of an example with what the command line says.

    Args:
        title: Of table and figure.
        name: Of the figure's file.
        makers: The ways.
        told: The parsed command line.
        steps: Of the loss curves, where not all are to be run.
    """
    torch.set_num_threads(told.threads)
    compare(
        title,
        makers,
        steps=told.steps if steps is None else steps,
        rounds=told.rounds,
        figure=told.figure or Path(f"build/{name}.png"),
        tolerance=2e-2,
    )


def draw(
    title: str, curves: dict[str, Sequence[float]], times: dict[str, float], figure: Path
) -> None:
    """Loss curves on the left, time per step on the right."""
    fig, (left, right) = plt.subplots(1, 2, figsize=(11, 4), layout="constrained")
    styles = ["-", "--", ":", "-.", (0, (1, 3)), (0, (5, 5))]
    for (name, curve), style in zip(curves.items(), styles * 3, strict=False):
        left.plot(curve, linestyle=style, linewidth=2, label=name)
    left.set(xlabel="step", ylabel="loss", yscale="symlog" if min(curves["eager"]) <= 0 else "log")
    left.set_title(title)
    left.legend()
    right.barh(list(times), list(times.values()))
    right.set(xlabel="ms per step")
    right.invert_yaxis()
    figure.parent.mkdir(parents=True, exist_ok=True)
    fig.savefig(figure, dpi=120)
    plt.close(fig)
    console.print(f"figure: {figure}")


def with_jax(makers: Makers, make_jax: Callable[[], Step]) -> Makers:
    """The ways, and ``jax.jit`` among them if JAX is installed."""
    try:
        import jax  # noqa: F401
    except ImportError:
        return makers
    return {**makers, "jax.jit": make_jax}
