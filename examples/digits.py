"""Train a quantized network on handwritten digits twice, eager and compiled, and compare.

The weights go through a straight-through quantizer: rounded in forward, and passed on by a backward
of its own, which no tracer could derive. Everything that is printed is measured in this run.

    python examples/digits.py [--epochs 30] [--steps N] [--backend inductor] [--figure PATH]
"""

from __future__ import annotations

import argparse
import statistics
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path

import matplotlib as mpl
import torch
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn
from rich.table import Table
from sklearn.datasets import load_digits
from sklearn.model_selection import train_test_split
from torch import Tensor, nn
from torch.nn import functional as F

import funcaot
from comparisons import comparison_table

SEED = 0
BATCH = 128
WARM_UP = 3  # steps left out of the step time: the first compiles
COMPARED_STEPS = 50

console = Console(highlight=False, width=100)


# --- the network -----------------------------------------------------------------


class Quantize(funcaot.Function):
    """Round to one of ``levels`` steps a side; the gradient passes straight through.

    Weights beyond the last step are clipped, and get no gradient.
    """

    @staticmethod
    def forward(weight: Tensor, step: Tensor, levels: int) -> Tensor:
        return (weight / step).round().clamp(-levels, levels) * step

    @staticmethod
    def setup_context(ctx, inputs, output) -> None:
        weight, step, ctx.levels = inputs
        ctx.save_for_backward(weight, step)

    @staticmethod
    def backward(ctx, grad_output: Tensor):
        weight, step = ctx.saved_tensors
        inside = weight.abs() <= ctx.levels * step
        return grad_output * inside, None, None


def quantize(weight: Tensor, bits: int = 6) -> Tensor:
    """Quantize symmetrically, with the step chosen so that three deviations fit."""
    levels = 2 ** (bits - 1) - 1
    step = 3 * weight.detach().std() / levels
    return Quantize.apply(weight, step, levels)


class DigitNetwork(nn.Module):
    """Two convolutions and a linear layer, their weights quantized to six bits."""

    def __init__(self, channels: int = 32) -> None:
        super().__init__()
        self.first = nn.Conv2d(1, channels, 3, padding=1)
        self.second = nn.Conv2d(channels, channels, 3, padding=1)
        self.last = nn.Linear(channels * 4 * 4, 10)

    def forward(self, images: Tensor) -> Tensor:
        hidden = F.conv2d(images, quantize(self.first.weight), self.first.bias, padding=1).relu()
        hidden = F.conv2d(hidden, quantize(self.second.weight), self.second.bias, padding=1).relu()
        hidden = F.max_pool2d(hidden, 2).flatten(1)
        return F.linear(hidden, quantize(self.last.weight), self.last.bias)


# --- the data -----------------------------------------------------------------


@dataclass(frozen=True)
class Digits:
    """Images ``[n, 1, 8, 8]`` in [0, 1] and their labels, split once."""

    train_images: Tensor
    train_labels: Tensor
    test_images: Tensor
    test_labels: Tensor

    def batches(self, steps: int) -> Iterator[tuple[Tensor, Tensor]]:
        """Yield ``steps`` full batches, reshuffled every epoch, the same in every run."""
        generator = torch.Generator().manual_seed(SEED)
        order = torch.empty(0, dtype=torch.long)
        for _ in range(steps):
            if len(order) < BATCH:
                order = torch.randperm(len(self.train_labels), generator=generator)
            chosen, order = order[:BATCH], order[BATCH:]
            yield self.train_images[chosen], self.train_labels[chosen]


def load() -> Digits:
    """Load the 1,797 images that scikit-learn ships."""
    digits = load_digits()
    images = torch.tensor(digits.images, dtype=torch.float32).unsqueeze(1) / 16
    labels = torch.tensor(digits.target)
    split = train_test_split(images, labels, test_size=0.2, random_state=SEED, stratify=labels)
    train_images, test_images, train_labels, test_labels = split
    return Digits(train_images, train_labels, test_images, test_labels)


# --- training -----------------------------------------------------------------


@dataclass
class Run:
    """One training: a model, its optimizer, and what was measured on the way."""

    name: str
    model: nn.Module
    optimizer: torch.optim.Optimizer
    schedule: torch.optim.lr_scheduler.LRScheduler
    losses: list[float] = field(default_factory=list)
    step_seconds: list[float] = field(default_factory=list)
    traces_after_forward: int = 0
    traces_after_backward: int = 0
    accuracy: float = 0.0

    def step(self, images: Tensor, labels: Tensor) -> None:
        """One step of AdamW; the first one also notes when the backward was traced."""
        first = not self.losses
        started = time.perf_counter()
        loss = F.cross_entropy(self.model(images), labels)
        if first:
            self.traces_after_forward = self.backward_traces()
        self.optimizer.zero_grad()
        loss.backward()
        self.optimizer.step()
        self.schedule.step()
        self.step_seconds.append(time.perf_counter() - started)
        self.losses.append(loss.item())
        if first:
            self.traces_after_backward = self.backward_traces()

    def backward_traces(self) -> int:
        """How many backwards were traced so far; an eager model traces none."""
        return 0 if self.name == "eager" else funcaot.report(self.model).backward_traces

    def test(self, images: Tensor, labels: Tensor) -> None:
        """Note the share of the images that the model gets right."""
        self.model.eval()
        with torch.no_grad():
            predicted = self.model(images).argmax(1)
        self.accuracy = (predicted == labels).float().mean().item()

    @property
    def step_milliseconds(self) -> float:
        """Median time of a step, the first ones left out."""
        return 1e3 * statistics.median(self.step_seconds[WARM_UP:])

    @property
    def compile_seconds(self) -> float:
        """What the first step took beyond an ordinary one."""
        return self.step_seconds[0] - self.step_milliseconds / 1e3


def start(name: str, wrap: Callable[[nn.Module], nn.Module], steps: int) -> Run:
    """Set up a training from the seed; ``wrap`` may compile the network."""
    torch.manual_seed(SEED)
    model = wrap(DigitNetwork())
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2, weight_decay=1e-2)
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, 1e-2, total_steps=steps)
    return Run(name, model, optimizer, schedule)


def train(runs: list[Run], digits: Digits, steps: int) -> None:
    """Train all runs on the same batches, step by step, so that a busy machine slows all alike."""
    columns = (
        TextColumn("{task.description:8}"),
        BarColumn(),
        MofNCompleteColumn(),
        TextColumn("loss {task.fields[loss]}"),
        TimeElapsedColumn(),
    )
    with Progress(*columns, console=console) as progress:
        tasks = [progress.add_task(run.name, total=steps, loss="...") for run in runs]
        for images, labels in digits.batches(steps):
            for run, task in zip(runs, tasks, strict=True):
                run.step(images, labels)
                progress.update(task, advance=1, loss=f"{run.losses[-1]:.4f}")
    for run in runs:
        run.test(digits.test_images, digits.test_labels)


# --- what came out -----------------------------------------------------------------


def print_results(eager: Run, compiled: Run, report) -> None:
    """Print accuracy, loss curves, times, and what the report knows."""
    compared = list(zip(eager.losses, compiled.losses, strict=True))[:COMPARED_STEPS]
    difference = max(abs(a - b) for a, b in compared)
    ratio = eager.step_milliseconds / compiled.step_milliseconds
    residuals = [residual for entry in report.entries for residual in entry.residuals]
    residual_bytes = sum(residual.bytes for residual in residuals)
    table = Table(show_header=False, box=None, padding=(0, 2, 0, 0))
    for row in (
        ("test accuracy", f"eager {eager.accuracy:.2%}, compiled {compiled.accuracy:.2%}"),
        ("loss curves", f"differ by at most {difference:.1e} over {len(compared)} steps"),
        (
            "step time",
            f"eager {eager.step_milliseconds:.2f} ms, compiled "
            f"{compiled.step_milliseconds:.2f} ms ({ratio:.2f} times as fast)",
        ),
        ("compile time", f"{compiled.compile_seconds:.1f} s, in the first step"),
        (
            "backward traced",
            f"{compiled.traces_after_forward} after the first forward, "
            f"{compiled.traces_after_backward} after the first backward, "
            f"{report.backward_traces} at the end",
        ),
        ("graphs compiled", str(report.graphs_compiled)),
        (
            "kept for backward",
            f"{len(residuals)} values, {residual_bytes:,} bytes beyond inputs and outputs",
        ),
    ):
        table.add_row(*row)
    console.print(table)


def save_figure(eager: Run, compiled: Run, path: Path) -> None:
    """Draw both loss curves and both step times."""
    mpl.use("Agg")
    from matplotlib import pyplot

    figure, (losses, times) = pyplot.subplots(1, 2, figsize=(10, 3.6), layout="constrained")
    losses.plot(eager.losses, label="eager", linewidth=3, alpha=0.4)
    losses.plot(compiled.losses, label="funcaot", linewidth=1)
    losses.set(title="Training loss", xlabel="step", ylabel="cross-entropy", yscale="log")
    losses.legend()
    samples = [[1e3 * s for s in run.step_seconds[WARM_UP:]] for run in (eager, compiled)]
    times.boxplot(samples, tick_labels=["eager", "funcaot"], showfliers=False)
    times.set(title="Time of a step", ylabel="milliseconds")
    times.set_ylim(bottom=0)
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, dpi=120)
    pyplot.close(figure)


def parse_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--epochs", type=int, default=30)
    parser.add_argument("--steps", type=int, help="optimizer steps, instead of --epochs")
    parser.add_argument("--backend", default="inductor", choices=["inductor", "eager"])
    parser.add_argument("--figure", type=Path, default=Path("build/digits.png"))
    parser.add_argument("--no-comparisons", dest="comparisons", action="store_false")
    arguments = parser.parse_args()
    if arguments.steps is not None and arguments.steps <= WARM_UP:
        parser.error(f"--steps must be more than {WARM_UP}")
    return arguments


def main() -> None:
    arguments = parse_arguments()
    torch.set_num_threads(1)  # the network is small, and one thread times steadily
    digits = load()
    steps = arguments.steps or arguments.epochs * (len(digits.train_labels) // BATCH)
    console.print(
        f"{len(digits.train_labels)} images to train on, {len(digits.test_labels)} to test"
    )
    eager = start("eager", lambda network: network, steps)
    compiled = start(
        "funcaot", lambda network: funcaot.compile(network, backend=arguments.backend), steps
    )
    train([eager, compiled], digits, steps)
    console.print()
    print_results(eager, compiled, funcaot.report(compiled.model))
    save_figure(eager, compiled, arguments.figure)
    console.print(f"\nfigure: {arguments.figure}")
    if arguments.comparisons:
        console.print()
        console.print(comparison_table())


if __name__ == "__main__":
    main()
