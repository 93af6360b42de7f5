"""Real workloads, a training step each: eager, torch.compile, funcaot and ``jax.jit`` in turns.

The steps are those of ``examples/``, the same mathematics in float32 from the same seed; the loss
curves are compared.

    python benchmarks/workloads.py [--threads 1 2] [--only NAME ...]
"""

from __future__ import annotations

import importlib
from collections.abc import Callable
from functools import partial
from typing import Any

from in_turns import Workload, main, no_slower


def example(module: str, *arguments: str) -> dict[str, Callable[[], Any]]:
    """The ways to run the step of an example."""
    return importlib.import_module(module).makers(*arguments)


WHOLE = no_slower("funcaot: whole step", "torch.compile", "jax.jit")
GRADIENTS = "torch.compile: compiled vmap(grad(loss))"
WORKLOADS = {
    "force matching": Workload(
        "Force matching, 32 clusters of 13 atoms",
        partial(example, "force_matching"),
        aims=(
            ("funcaot: energy", "eager", 1 / 1.5),
            ("funcaot: energy and forces", "eager", 1 / 1.5),
            *no_slower("funcaot: energy", "jax.jit"),
            *no_slower("funcaot: energy and forces", "jax.jit"),
        ),
    ),
    "poisson": Workload("Physics-informed network, Poisson equation", partial(example, "poisson")),
    "convolutions": Workload(
        "Whole step, digits, convolutions", partial(example, "training_step", "convolutions"), WHOLE
    ),
    "gpt": Workload("Whole step, small GPT", partial(example, "training_step", "gpt"), WHOLE),
    "private": Workload(
        "Private training, 128 gradients per sample",
        partial(example, "private_training"),
        aims=(
            *no_slower("funcaot: vmap(grad(compiled loss))", GRADIENTS),
            *no_slower("funcaot: compiled vmap(grad(loss))", GRADIENTS),
            *no_slower("funcaot: whole step", "torch.compile: whole step"),
        ),
    ),
    "penalty": Workload("Critic with gradient penalty", partial(example, "gradient_penalty")),
    "digits": Workload(
        "Whole step, digits, linear layers", partial(example, "training_step", "digits"), WHOLE
    ),
}

if __name__ == "__main__":
    main("workloads", __doc__, WORKLOADS)
