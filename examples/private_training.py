"""Gradients per sample for private training (DP-SGD): ``vmap(grad(compiled_loss))``.

Each example's gradient is clipped, then their mean gets noise.

    python examples/private_training.py [--steps 40] [--threads 1] [--backend inductor]

With ``jax`` installed, ``jax.jit`` is timed too.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from sklearn.datasets import load_digits
from torch import Tensor, nn
from torch.func import functional_call, grad, vmap
from torch.nn import functional as F

import funcaot
from side_by_side import Makers, Step, command_line, compare_as_told, with_jax

BATCH, RATE, NOISE = 128, 0.5, 1e-3
Parameters = dict[str, Tensor]


def new_model() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(64, 64), nn.Tanh(), nn.Linear(64, 10))


@functools.cache
def batches() -> list[tuple[Tensor, Tensor, Parameters]]:
    """Digits, their labels, and the noise for each parameter."""
    x, y = load_digits(return_X_y=True)
    x, y = torch.tensor(x, dtype=torch.float32) / 16, torch.tensor(y)
    generator = torch.Generator().manual_seed(1)
    shapes = {name: p.shape for name, p in new_model().named_parameters()}
    return [
        (
            x[i : i + BATCH],
            y[i : i + BATCH],
            {k: NOISE * torch.randn(shape, generator=generator) for k, shape in shapes.items()},
        )
        for i in range(0, 1664, BATCH)
    ]


def update(p: Parameters, found: Parameters, noise: Parameters) -> Parameters:
    """Parameters after a step along the mean of clipped gradients, with noise."""
    norms = sum(g.flatten(1).square().sum(1) for g in found.values()).sqrt()
    scale = (1.0 / norms).clamp(max=1.0) / BATCH
    means = {k: (scale @ g.flatten(1)).view(p[k].shape) for k, g in found.items()}
    return {k: p[k] - RATE * (mean + noise[k]) for k, mean in means.items()}


@dataclass(frozen=True)
class Loss:
    """The loss at some parameters, computed when it is asked for, so that it isn't timed."""

    compute: Callable[[], Any]

    def __float__(self) -> float:
        return float(self.compute())


def make(way: str, backend: str) -> Step:
    """A training step, from the same start; the gradients are compiled, or the whole step is."""
    model, data = new_model(), batches()
    parameters = {name: p.detach().clone() for name, p in model.named_parameters()}

    def loss_of(p: Parameters, x: Tensor, y: Tensor) -> Tensor:
        return F.cross_entropy(functional_call(model, p, (x[None],)), y[None])

    def per_sample(loss: Callable) -> Callable:
        return vmap(grad(loss), in_dims=(None, 0, 0))

    compiler = {
        "torch.compile": torch.compile,
        "funcaot": functools.partial(funcaot.compile, backend=backend),
    }.get(way.partition(":")[0])
    gradients = per_sample(loss_of)
    if way == "funcaot: vmap(grad(compiled loss))":
        gradients = per_sample(compiler(loss_of))
    elif way.endswith("compiled vmap(grad(loss))"):
        gradients = compiler(gradients)

    def new_parameters(p: Parameters, x: Tensor, y: Tensor, noise: Parameters) -> Parameters:
        return update(p, gradients(p, x, y), noise)

    if way.endswith("whole step"):
        new_parameters = compiler(new_parameters)

    def step(index: int) -> Loss:
        x, y, noise = data[index % len(data)]
        parameters.update(new_parameters(parameters, x, y, noise))
        return Loss(lambda: F.cross_entropy(functional_call(model, parameters, (x,)), y))

    return step


def make_jax() -> Step:
    """The same step for ``jax.jit``, all of it, from the same start."""
    import jax
    import jax.numpy as jnp

    from jax_step import array, linear, parameters_of

    @jax.jit
    def loss_of(p, x, y):
        logits = linear(p, "2", jnp.tanh(linear(p, "0", x)))
        return -jnp.take_along_axis(jax.nn.log_softmax(logits), y[..., None], -1).mean()

    @jax.jit
    def new_parameters(p, x, y, noise):
        found = jax.vmap(jax.grad(loss_of), in_axes=(None, 0, 0))(p, x, y)
        norms = jnp.sqrt(sum((g**2).reshape(BATCH, -1).sum(1) for g in found.values()))
        scale = jnp.minimum(1 / norms, 1) / BATCH
        means = {k: (scale @ g.reshape(BATCH, -1)).reshape(p[k].shape) for k, g in found.items()}
        return {k: p[k] - RATE * (mean + noise[k]) for k, mean in means.items()}

    parameters = parameters_of(new_model())
    data = [
        (array(x), array(y), {k: array(v) for k, v in noise.items()}) for x, y, noise in batches()
    ]

    def step(index: int) -> Loss:
        x, y, noise = data[index % len(data)]
        parameters.update(jax.block_until_ready(new_parameters(parameters, x, y, noise)))
        return Loss(lambda: loss_of(parameters, x, y))

    return step


WAYS = (
    "eager",
    "torch.compile: compiled vmap(grad(loss))",
    "torch.compile: whole step",
    "funcaot: vmap(grad(compiled loss))",
    "funcaot: compiled vmap(grad(loss))",
    "funcaot: whole step",
)


def makers(backend: str = "inductor") -> Makers:
    """Every way to run the step."""
    return with_jax({way: functools.partial(make, way, backend) for way in WAYS}, make_jax)


def main() -> None:
    told = command_line(__doc__, steps=40, rounds=20).parse_args()
    title = "Private training: gradients per sample"
    compare_as_told(title, "private_training", makers(told.backend), told)


if __name__ == "__main__":
    main()
