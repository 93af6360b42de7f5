"""The figures of the docs page; nothing is drawn where matplotlib isn't installed.

They are readable on a light page, on a dark one and on a phone: nothing behind them, text in a grey
that both contrast with, and no wider than it takes.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from common import RESULTS

GREY = "#77828e"
WIDTH = 5.6  # inches
WHOS = ("eager", "torch.compile", "funcaot", "jax.jit")


def plots() -> Any:
    """matplotlib, or None where it isn't installed."""
    try:
        import matplotlib as mpl
    except ImportError:
        return None
    mpl.use("Agg")
    mpl.rcParams["svg.hashsalt"] = "funcaot"
    mpl.rcParams["savefig.transparent"] = True
    for name in ("text", "axes.edge", "axes.label", "xtick", "ytick"):
        mpl.rcParams[f"{name}color" if name.startswith("axes") else f"{name}.color"] = GREY
    mpl.rcParams["legend.frameon"] = False
    mpl.rcParams["font.size"] = 9
    import matplotlib.pyplot as plt

    return plt


def draw_bars(
    name: str, bars: dict[str, dict[str, float]], label: str, whos: Sequence[str] = WHOS
) -> None:
    plt = plots()
    if plt is None:
        return
    figure, axes = plt.subplots(figsize=(WIDTH, 0.8 + 0.5 * len(bars)))
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
    figure, axes = plt.subplots(figsize=(WIDTH, 3.6))
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


def slug(name: str, key: str) -> str:
    """The name of a workload's figure."""
    words = "".join(letter if letter.isalnum() else " " for letter in key.lower()).split()
    return "-".join([name, *words])


def draw_workloads(name: str, content: dict[str, Any]) -> None:
    """A figure for each workload: loss curves with one thread, times of a step below."""
    plt = plots()
    if plt is None:
        return
    for key, made in content["workloads"].items():
        figure, (above, below) = plt.subplots(2, 1, figsize=(WIDTH, 4.8))
        above.set_title(content["titles"][key], fontsize=10)
        draw_losses(above, next(iter(made.values())).get("ways", {}))
        draw_times(below, made)
        save(figure, slug(name, key))


def draw_speedups(speedups: dict[str, dict[str, float]]) -> None:
    """How many times as fast as eager each way is, workload by workload."""
    plt = plots()
    if plt is None:
        return
    whos = ("torch.compile", "funcaot", "jax.jit")
    figure, axes = plt.subplots(figsize=(WIDTH, 0.8 + 0.55 * len(speedups)))
    for at, who in enumerate(whos):
        places = [place for place, found in enumerate(speedups.values()) if who in found]
        lengths = [found[who] for found in speedups.values() if who in found]
        colour = f"C{WHOS.index(who)}"
        bars = axes.barh([place + 0.27 * at for place in places], lengths, 0.25, color=colour)
        bars.set_label(who)
        for place, length in zip(places, lengths, strict=True):
            axes.text(length, place + 0.27 * at, f" {length:.1f}", va="center", fontsize=7)
    axes.axvline(1, color=GREY, linewidth=0.8)
    axes.set_yticks([index + 0.27 for index in range(len(speedups))], list(speedups))
    axes.set_xlabel("times as fast as eager, 1 thread")
    axes.invert_yaxis()
    axes.spines[["top", "right"]].set_visible(False)
    axes.legend(fontsize=8)
    save(figure, "speedups")


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
    axes.legend(fontsize=7)
    axes.tick_params(labelsize=8)


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
    axes.set_xlabel("ms per step", fontsize=8)
    axes.legend(fontsize=7)
    axes.tick_params(labelsize=8)
