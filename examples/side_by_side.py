"""Run the same step several ways: the same losses from the same seed, and the time of a step."""

from __future__ import annotations

import statistics
import time
import warnings
from collections.abc import Callable
from pathlib import Path

import matplotlib as mpl

mpl.use("Agg")
import matplotlib.pyplot as plt
from rich.console import Console
from rich.table import Table

console = Console(highlight=False, width=100)
Step = Callable[[int], float]


def losses_of(make: Callable[[], Step], steps: int) -> list[float]:
    """The loss at each step from a fresh start."""
    step = make()
    return [float(step(index)) for index in range(steps)]


def milliseconds(makers: dict[str, Callable[[], Step]], rounds: int, inner: int = 3) -> dict:
    """Median time of a step, the ways taken in turn so that they see the same machine."""
    steps = {name: make() for name, make in makers.items()}
    for step in steps.values():
        for index in range(5):
            step(index)
    times: dict[str, list[float]] = {name: [] for name in steps}
    for _ in range(rounds):
        for name, step in steps.items():
            start = time.perf_counter()
            for index in range(inner):
                step(index)
            times[name].append((time.perf_counter() - start) / inner * 1e3)
    return {name: statistics.median(values) for name, values in times.items()}


def refusal(make: Callable[[], Step]) -> str | None:
    """What a way answers if it can't run the step; None if it can."""
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            step = make()
            step(0)
            step(1)
    except Exception as error:  # noqa: BLE001 (whatever it raises is the answer)
        return f"{type(error).__name__}: {str(error).splitlines()[0][:70]}"
    return None


def compare(
    title: str,
    makers: dict[str, Callable[[], Step]],
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
    refused = {name: refusal(make) for name, make in makers.items()}
    running = {name: make for name, make in makers.items() if refused[name] is None}
    curves = {name: losses_of(make, steps) for name, make in running.items()}
    times = milliseconds(running, rounds)
    for name in makers:
        if refused[name] is not None:
            table.add_row(name, "-", "-", refused[name])
            continue
        gap = max(
            abs(a - b) / max(abs(b), 1e-8)
            for a, b in zip(curves[name], curves["eager"], strict=True)
        )
        ratio = times["eager"] / times[name]
        table.add_row(name, f"{times[name]:.3f}", f"{ratio:.2f}", f"{gap:.1e}")
        if gap > tolerance:
            raise SystemExit(f"{name} doesn't train like eager: {gap:.1e}")
    console.print(table)
    if figure is not None:
        draw(title, curves, times, figure)
    return times


def draw(title: str, curves: dict[str, list[float]], times: dict[str, float], figure: Path) -> None:
    """Loss curves on the left, time per step on the right."""
    fig, (left, right) = plt.subplots(1, 2, figsize=(11, 4), layout="constrained")
    styles = ["-", "--", ":", "-.", (0, (1, 3)), (0, (5, 5))]
    for (name, curve), style in zip(curves.items(), styles * 3, strict=False):
        left.plot(curve, linestyle=style, linewidth=2, label=name)
    left.set(xlabel="step", ylabel="loss", yscale="log", title=title)
    left.legend()
    right.barh(list(times), list(times.values()))
    right.set(xlabel="ms per step")
    right.invert_yaxis()
    figure.parent.mkdir(parents=True, exist_ok=True)
    fig.savefig(figure, dpi=120)
    plt.close(fig)
    console.print(f"figure: {figure}")
