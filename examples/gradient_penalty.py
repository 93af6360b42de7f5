"""The gradient penalty of a Wasserstein critic (WGAN-GP), several ways.

The penalty is on the norm of the critic's gradient, so the critic is differentiated twice.

    python examples/gradient_penalty.py [--steps 40] [--threads 1] [--backend inductor]

With ``jax`` installed, the same step under ``jax.jit`` is timed too.
"""

from __future__ import annotations

import functools

import torch
from sklearn.datasets import load_digits
from torch import Tensor, nn

import funcaot
from side_by_side import Makers, Step, command_line, compare_as_told, with_jax

BATCH = 128


@functools.cache
def batches() -> list[tuple[Tensor, Tensor, Tensor]]:
    """Digits, noise instead of a generator's output, and how much of each to mix."""
    x = torch.tensor(load_digits(return_X_y=True)[0], dtype=torch.float32) / 16
    generator = torch.Generator().manual_seed(0)
    return [
        (
            x[i : i + BATCH],
            torch.rand(BATCH, 64, generator=generator),
            torch.rand(BATCH, 1, generator=generator),
        )
        for i in range(0, 1664, BATCH)
    ]


def new_critic() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(
        nn.Linear(64, 128), nn.SiLU(), nn.Linear(128, 128), nn.SiLU(), nn.Linear(128, 1)
    )


def make(way: str, backend: str) -> Step:
    """A training step, from the same start."""
    critic, data = new_critic(), batches()
    optimizer = torch.optim.Adam(critic.parameters(), lr=1e-3)
    compiler = functools.partial(funcaot.compile, backend=backend)
    network = compiler(critic) if way == "funcaot: critic" else critic
    if way == "torch.compile of the critic":
        network = torch.compile(critic)

    def loss_of(real: Tensor, fake: Tensor, mix: Tensor) -> Tensor:
        between = (mix * real + (1 - mix) * fake).requires_grad_()
        (gradient,) = torch.autograd.grad(network(between).sum(), between, create_graph=True)
        penalty = ((gradient.norm(dim=1) - 1) ** 2).mean()
        return network(fake).mean() - network(real).mean() + 10 * penalty

    if way == "funcaot: loss":
        loss_of = compiler(loss_of)

    def step(real: Tensor, fake: Tensor, mix: Tensor) -> Tensor:
        loss = loss_of(real, fake, mix)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        return loss.detach()

    if way == "funcaot: whole step":
        step = compiler(step)
    return lambda index: step(*data[index % len(data)])


def make_jax() -> Step:
    """The same step for ``jax.jit``, from the same start."""
    import jax
    import jax.numpy as jnp

    from jax_step import TrainingStep, linear

    def critic(p, x):
        h = jax.nn.silu(linear(p, "0", x))
        return linear(p, "4", jax.nn.silu(linear(p, "2", h)))

    def loss_of(p, real, fake, mix):
        gradient = jax.grad(lambda x: critic(p, x).sum())(mix * real + (1 - mix) * fake)
        penalty = ((jnp.linalg.norm(gradient, axis=1) - 1) ** 2).mean()
        return critic(p, fake).mean() - critic(p, real).mean() + 10 * penalty

    return TrainingStep(loss_of, new_critic(), batches(), rate=1e-3)


WAYS = (
    "eager",
    "torch.compile of the critic",
    "funcaot: critic",
    "funcaot: loss",
    "funcaot: whole step",
)


def makers(backend: str = "inductor") -> Makers:
    """Every way to run the step."""
    return with_jax({way: functools.partial(make, way, backend) for way in WAYS}, make_jax)


def main() -> None:
    told = command_line(__doc__, steps=40, rounds=20).parse_args()
    title = "Critic with gradient penalty"
    compare_as_told(title, "gradient_penalty", makers(told.backend), told)


if __name__ == "__main__":
    main()
