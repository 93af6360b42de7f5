"""A physics-informed network for a Poisson equation, against its exact solution.

``-laplacian(u) = f`` on the square with ``u = 0`` on its border, where ``u = sin(pi x) sin(pi y)``.
The Laplacian is a repeated derivative; the loss differentiates it once more.

    python examples/poisson.py [--steps 600] [--threads 1] [--backend inductor]

With ``jax`` installed, the same step under ``jax.jit`` is timed too.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable

import torch
from torch import Tensor, nn

import funcaot
from side_by_side import Makers, Step, command_line, compare_as_told, console, with_jax

POINTS = 256
SETS = 100


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


@functools.cache
def points() -> list[Tensor]:
    """The sets of points that are trained on in turn."""
    generator = torch.Generator().manual_seed(0)
    return list(torch.rand(SETS, POINTS, 2, generator=generator))


class Solver:
    """A training step, and how far from the exact solution it has come."""

    def __init__(self, step: Step, solution: Callable[[Tensor], Tensor]) -> None:
        self.step, self.solution = step, solution

    def __call__(self, index: int) -> float:
        return self.step(index)

    def error(self) -> float:
        """Relative error against the exact solution on a grid."""
        line = torch.linspace(0, 1, 51)
        grid = torch.cartesian_prod(line, line)
        with torch.no_grad():
            return float((self.solution(grid) - exact(grid)).norm() / exact(grid).norm())


def make(way: str, backend: str) -> Solver:
    """A training step, from the same start."""
    torch.manual_seed(0)
    model, data = Solution(), points()
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
    return Solver(lambda index: step(data[index % SETS]), model)


def make_jax() -> Solver:
    """The same step for ``jax.jit``, from the same start."""
    import jax
    import jax.numpy as jnp

    from jax_step import TrainingStep, array, linear

    def u(p, x):
        h = jnp.tanh(linear(p, "net.2", jnp.tanh(linear(p, "net.0", x))))
        return linear(p, "net.4", h)[:, 0] * (x * (1 - x)).prod(-1) * 16

    def loss_of(p, x):
        def gradient(x):
            return jax.grad(lambda x: u(p, x).sum())(x)

        total = 2 * jnp.pi**2 * jnp.sin(jnp.pi * x).prod(-1)
        for i in range(2):
            total = total + jax.grad(lambda x, i=i: gradient(x)[:, i].sum())(x)[:, i]
        return (total**2).mean()

    torch.manual_seed(0)
    step = TrainingStep(loss_of, Solution(), [[x] for x in points()], rate=2e-3)
    return Solver(step, lambda x: torch.from_dlpack(u(step.parameters, array(x))))


WAYS = (
    "eager",
    "torch.compile of the network",
    "funcaot: network",
    "funcaot: residual",
    "funcaot: whole step",
)


def makers(backend: str = "inductor") -> Makers:
    """Every way to run the step."""
    return with_jax({way: functools.partial(make, way, backend) for way in WAYS}, make_jax)


def main() -> None:
    told = command_line(__doc__, steps=600, rounds=20).parse_args()
    title = "Poisson equation by a physics-informed network"
    ways = makers(told.backend)
    compare_as_told(title, "poisson", ways, told, steps=min(told.steps, 60))
    for way in {"eager", "funcaot: whole step", "jax.jit"} & set(ways):
        solver = ways[way]()
        for index in range(told.steps):
            solver(index)
        error = solver.error()
        console.print(f"{way}: relative error {error:.4f} after {told.steps} steps")


if __name__ == "__main__":
    main()
