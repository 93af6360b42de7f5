"""Per-sample gradients for private training, and the gradient penalty of a Wasserstein critic.

Private training (DP-SGD) clips the gradient of each example: ``vmap(grad(compiled_loss))``. The
penalty is on the norm of a gradient, so the critic is differentiated twice.

    python examples/private_and_penalized.py [--steps 40] [--threads 1] [--backend inductor]
"""

from __future__ import annotations

import argparse
import functools
from pathlib import Path

import torch
from sklearn.datasets import load_digits
from torch import Tensor, nn
from torch.func import functional_call, grad, vmap
from torch.nn import functional as F

import funcaot
from side_by_side import Step, compare

_X, _Y = load_digits(return_X_y=True)
X, Y = torch.tensor(_X, dtype=torch.float32) / 16, torch.tensor(_Y)
BATCH = 128


def batch(index: int) -> slice:
    start = index * BATCH % (len(X) - BATCH)
    return slice(start, start + BATCH)


def private(way: str, backend: str) -> Step:
    """Gradients of 128 examples, each clipped, then their mean with noise, then a step."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(64, 64), nn.Tanh(), nn.Linear(64, 10))
    parameters = {name: p.detach().clone() for name, p in model.named_parameters()}
    noise = torch.Generator().manual_seed(1)

    def loss_of(p: dict[str, Tensor], x: Tensor, y: Tensor) -> Tensor:
        return F.cross_entropy(functional_call(model, p, (x[None],)), y[None])

    def per_sample(loss):
        return vmap(grad(loss), in_dims=(None, 0, 0))

    gradients = {
        "eager": lambda: per_sample(loss_of),
        "torch.compile(vmap(grad(loss)))": lambda: torch.compile(per_sample(loss_of)),
        "vmap(grad(funcaot(loss)))": lambda: per_sample(funcaot.compile(loss_of, backend=backend)),
        "funcaot(vmap(grad(loss)))": lambda: funcaot.compile(per_sample(loss_of), backend=backend),
    }[way]()

    def step(index: int) -> Tensor:
        x, y = X[batch(index)], Y[batch(index)]
        found = gradients(parameters, x, y)
        norms = sum(g.flatten(1).square().sum(1) for g in found.values()).sqrt()
        scale = (1.0 / norms).clamp(max=1.0)
        for name, g in found.items():
            clipped = torch.einsum("b,b...->...", scale, g) / BATCH
            drawn = torch.randn(clipped.shape, generator=noise)
            parameters[name] = parameters[name] - 0.5 * (clipped + 1e-3 * drawn)
        with torch.no_grad():
            return F.cross_entropy(functional_call(model, parameters, (x,)), y)

    return step


def penalized(way: str, backend: str) -> Step:
    """A critic of digits against noise, with the penalty on its gradient's norm."""
    torch.manual_seed(0)
    critic = nn.Sequential(
        nn.Linear(64, 128), nn.SiLU(), nn.Linear(128, 128), nn.SiLU(), nn.Linear(128, 1)
    )
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

    def train(real: Tensor, fake: Tensor, mix: Tensor) -> Tensor:
        loss = loss_of(real, fake, mix)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        return loss.detach()

    if way == "funcaot: whole step":
        train = compiler(train)

    def step(index: int) -> Tensor:
        generator = torch.Generator().manual_seed(index)
        fake = torch.rand(BATCH, 64, generator=generator)
        return train(X[batch(index)], fake, torch.rand(BATCH, 1, generator=generator))

    return step


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--steps", type=int, default=40)
    parser.add_argument("--rounds", type=int, default=20)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--backend", default="inductor")
    parser.add_argument("--figures", type=Path, default=Path("build"))
    arguments = parser.parse_args()
    torch.set_num_threads(arguments.threads)
    tasks = {
        "Private training: per-sample gradients": (
            private,
            "private.png",
            (
                "eager",
                "torch.compile(vmap(grad(loss)))",
                "vmap(grad(funcaot(loss)))",
                "funcaot(vmap(grad(loss)))",
            ),
        ),
        "Critic with gradient penalty": (
            penalized,
            "penalty.png",
            (
                "eager",
                "torch.compile of the critic",
                "funcaot: critic",
                "funcaot: loss",
                "funcaot: whole step",
            ),
        ),
    }
    for title, (make, figure, ways) in tasks.items():
        compare(
            title,
            {way: functools.partial(make, way, arguments.backend) for way in ways},
            steps=arguments.steps,
            rounds=arguments.rounds,
            figure=arguments.figures / figure,
            tolerance=2e-2,
        )


if __name__ == "__main__":
    main()
