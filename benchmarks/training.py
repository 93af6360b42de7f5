"""A training step of larger models with AdamW: eager, torch.compile and funcaot in turns.

The forward is compiled, the optimizer is eager in all of them.

    python benchmarks/training.py [--threads 1 2] [--only NAME ...]
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import torch
from in_turns import Workload, main, no_slower
from models import models

import funcaot

COMPILERS: dict[str, Callable[[Any], Any]] = {
    "eager": lambda model: model,
    "torch.compile": torch.compile,
    "funcaot": funcaot.compile,
}


def trainer(name: str, wrap: Callable[[Any], Any]) -> Callable[[int], Any]:
    """A function that makes one step and returns the loss."""
    model, arguments = models()[name]
    compiled = wrap(model.train())
    optimizer = torch.optim.AdamW(compiled.parameters(), lr=1e-4)

    def step(index: int) -> torch.Tensor:
        loss = compiled(*arguments)
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        return loss.detach()

    return step


def makers(name: str) -> dict[str, Callable[[], Any]]:
    """Every way to run the step."""
    return {who: partial(trainer, name, wrap) for who, wrap in COMPILERS.items()}


WORKLOADS = {
    name: Workload(
        f"A training step of the {name}",
        partial(makers, name),
        no_slower("funcaot", "torch.compile"),
        random="dropout" in name,
        steps=5,
    )
    for name in models()
}

if __name__ == "__main__":
    main("training", __doc__, WORKLOADS)
