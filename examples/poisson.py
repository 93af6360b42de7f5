"""A physics-informed network for a Poisson equation, against its exact solution.

``-laplacian(u) = f`` on the square with ``u = 0`` on its border, where ``u = sin(pi x) sin(pi y)``.
The Laplacian is a repeated derivative; the loss differentiates it once more.

    python examples/poisson.py [--steps 600] [--threads 1] [--backend inductor]
"""

from __future__ import annotations

import argparse
import functools
import math
from pathlib import Path

import torch
from torch import Tensor, nn

import funcaot
from side_by_side import Step, compare, console

POINTS = 256


class Solution(nn.Module):
    """A network that vanishes on the border."""

    def __init__(self) -> None:
        super().__init__()
        self.net = nn.Sequential(
            nn.Linear(2, 48), nn.Tanh(), nn.Linear(48, 48), nn.Tanh(), nn.Linear(48, 1)
        )

    def forward(self, x: Tensor) -> Tensor:
        return self.net(x).squeeze(-1) * (x * (1 - x)).prod(-1) * 16


def exact(x: Tensor) -> Tensor:
    return torch.sin(math.pi * x).prod(-1)


def residual(u, x: Tensor) -> Tensor:
    """``laplacian(u) + f`` at points of shape [n, 2], by repeated derivatives."""
    x = x.detach().requires_grad_()
    (gradient,) = torch.autograd.grad(u(x).sum(), x, create_graph=True)
    total = 2 * math.pi**2 * exact(x)
    for i in range(2):
        (second,) = torch.autograd.grad(gradient[:, i].sum(), x, create_graph=True)
        total = total + second[:, i]
    return total


def points(index: int) -> Tensor:
    return torch.rand(POINTS, 2, generator=torch.Generator().manual_seed(index))


def make(way: str, backend: str, models: dict[str, nn.Module] | None = None) -> Step:
    """A training step, from the same start."""
    torch.manual_seed(0)
    model = Solution()
    if models is not None:
        models[way] = model
    optimizer = torch.optim.Adam(model.parameters(), lr=2e-3)
    compiler = functools.partial(funcaot.compile, backend=backend)
    u = compiler(model) if way == "funcaot: network" else model
    if way == "torch.compile of the network":
        u = torch.compile(model)

    def loss_of(x: Tensor) -> Tensor:
        return (residual(u, x) ** 2).mean()

    if way == "funcaot: residual":
        loss_of = compiler(loss_of)

    def step(x: Tensor) -> Tensor:
        loss = loss_of(x)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        return loss.detach()

    if way == "funcaot: whole step":
        step = compiler(step)
    return lambda index: step(points(index))


def error_of(model: nn.Module) -> float:
    """Relative error against the exact solution on a grid."""
    line = torch.linspace(0, 1, 51)
    grid = torch.cartesian_prod(line, line)
    with torch.no_grad():
        return float((model(grid) - exact(grid)).norm() / exact(grid).norm())


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--steps", type=int, default=600)
    parser.add_argument("--rounds", type=int, default=20)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--backend", default="inductor")
    parser.add_argument("--figure", type=Path, default=Path("build/poisson.png"))
    arguments = parser.parse_args()
    torch.set_num_threads(arguments.threads)
    ways = (
        "eager",
        "torch.compile of the network",
        "funcaot: network",
        "funcaot: residual",
        "funcaot: whole step",
    )
    makers = {way: functools.partial(make, way, arguments.backend) for way in ways}
    compare(
        "Poisson equation by a physics-informed network",
        makers,
        steps=min(arguments.steps, 60),
        rounds=arguments.rounds,
        figure=arguments.figure,
        tolerance=2e-2,
    )
    for way in ("eager", "funcaot: whole step"):
        models: dict[str, nn.Module] = {}
        step = make(way, arguments.backend, models)
        for index in range(arguments.steps):
            step(index)
        error = error_of(models[way])
        console.print(f"{way}: relative error {error:.4f} after {arguments.steps} steps")


if __name__ == "__main__":
    main()
