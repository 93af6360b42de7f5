"""The figures of the docs page; nothing is drawn where matplotlib isn't installed."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from common import RESULTS

WHOS = ("eager", "torch.compile", "funcaot", "jax.jit")


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


def draw_workloads(name: str, content: dict[str, Any]) -> None:
    """Loss curves with one thread on the left, times of a step on the right, a row each."""
    plt = plots()
    if plt is None:
        return
    workloads = content["workloads"]
    size = (11, 2.6 * len(workloads))
    figure, axes = plt.subplots(len(workloads), 2, figsize=size, squeeze=False)
    for (left, right), (key, made) in zip(axes, workloads.items(), strict=True):
        left.set_title(content["titles"][key], fontsize=9)
        right.set_title("ms per step", fontsize=9)
        draw_losses(left, next(iter(made.values())).get("ways", {}))
        draw_times(right, made)
    save(figure, name)


def draw_losses(axes: Any, ways: dict[str, Any]) -> None:
    styles = ("-", "--", ":", "-.", (0, (1, 3)), (0, (5, 5)), (0, (3, 1, 1, 1)))
    positive = True
    for at, (way, result) in enumerate(ways.items()):
        if "losses" in result:
            width = 3 - 0.3 * at
            style = styles[at % len(styles)]
            axes.plot(result["losses"], linestyle=style, linewidth=width, label=way)
            positive = positive and min(result["losses"]) > 0
    axes.set_yscale("log" if positive else "symlog")
    axes.set_xlabel("step", fontsize=8)
    axes.set_ylabel("loss", fontsize=8)
    axes.legend(fontsize=6)
    axes.tick_params(labelsize=7)


def draw_times(axes: Any, made: dict[str, Any]) -> None:
    names = list({way: None for measured in made.values() for way in measured.get("ways", {})})
    height = 0.8 / len(made)
    for at, (threads, measured) in enumerate(made.items()):
        ways = measured.get("ways", {})
        places = [i for i, way in enumerate(names) if "milliseconds" in ways.get(way, {})]
        widths = [ways[names[i]]["milliseconds"] for i in places]
        label = "1 thread" if threads == "1" else f"{threads} threads"
        axes.barh([i + at * height for i in places], widths, height, label=label)
    axes.set_yticks([i + 0.4 - height / 2 for i in range(len(names))], names)
    axes.invert_yaxis()
    axes.legend(fontsize=6)
    axes.tick_params(labelsize=7)
