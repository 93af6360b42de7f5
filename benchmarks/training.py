"""Time of a training step, optimizer included: eager, torch.compile and funcaot in turns.

Wall-clock time in one process. Each round times a few steps of every contestant, one after the
other; what is compared are the medians over the rounds. Run ``python benchmarks/training.py``.
"""

from __future__ import annotations

import copy
import statistics
import time
from collections.abc import Callable
from typing import Any

import torch
from common import environment_of, parser_of, print_table, progress, write_json
from residuals import models

import funcaot

CONTESTANTS: dict[str, Callable[[Any], Any]] = {
    "eager": lambda model: model,
    "torch.compile": torch.compile,
    "funcaot": funcaot.compile,
}


def trainer(
    model: Any, wrap: Callable[[Any], Any], arguments: tuple[Any, ...]
) -> Callable[[], Any]:
    """A function that makes one step and returns the loss."""
    own = copy.deepcopy(model).train()
    compiled = wrap(own)
    optimizer = torch.optim.AdamW(own.parameters(), lr=1e-4)

    def step() -> torch.Tensor:
        loss = compiled(*arguments)
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        return loss.detach()

    return step


def measure(steps: dict[str, Callable[[], Any]], rounds: int, seconds: float) -> dict[str, Any]:
    for step in steps.values():
        for _ in range(5):
            step()
    start = time.perf_counter()
    for step in steps.values():
        step()
    each = (time.perf_counter() - start) / len(steps)
    count = max(1, int(seconds / rounds / each))
    samples: dict[str, list[float]] = {name: [] for name in steps}
    turns = list(steps.items())
    for _ in range(rounds):
        turns.append(turns.pop(0))  # nobody always goes first
        for name, step in turns:
            start = time.perf_counter()
            for _ in range(count):
                step()
            samples[name].append((time.perf_counter() - start) / count * 1e3)
    pairs = zip(samples["funcaot"], samples["torch.compile"], strict=True)
    fastest = {name: min(values) for name, values in samples.items()}
    return {
        "milliseconds": {name: statistics.median(values) for name, values in samples.items()},
        "fastest": fastest,
        "ratio_of_fastest": fastest["funcaot"] / fastest["torch.compile"],
        "ratio": statistics.median(ours / theirs for ours, theirs in pairs),
    }


def main() -> None:
    parser = parser_of(__doc__)
    parser.add_argument("--rounds", type=int, default=30)
    parser.add_argument("--seconds", type=float, default=8.0, help="per contestant and model")
    options = parser.parse_args()
    results: dict[str, Any] = {}
    chosen = models()
    if options.quick:
        options.rounds, options.seconds = 2, 0.1
        chosen = {name: case for name, case in chosen.items() if name.startswith("MLP")}
    for name, (model, arguments) in chosen.items():
        progress(name)
        steps = {who: trainer(model, wrap, arguments) for who, wrap in CONTESTANTS.items()}
        results[name] = measure(steps, options.rounds, options.seconds)
    rows = [
        [
            name,
            *(f"{made['milliseconds'][who]:.2f}" for who in CONTESTANTS),
            f"{made['ratio']:.3f}",
            f"{made['ratio_of_fastest']:.3f}",
        ]
        for name, made in results.items()
    ]
    head = ["model", *CONTESTANTS, "funcaot/torch.compile", "fastest rounds"]
    print_table("Milliseconds per training step", head, rows)
    write_json("training", {"environment": environment_of(), "models": results})


if __name__ == "__main__":
    main()
