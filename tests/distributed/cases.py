"""Small energies, their losses and their data: what is trained on many ranks and on one."""

from __future__ import annotations

from typing import Any

import torch
from torch import nn

from funcaot._torch.distributed import wrapped
from tests.hostile import COMPILER


class _Chosen:
    """What the tables of this folder compile with, in this process."""

    backend: Any = COMPILER


chosen = _Chosen()


def on_inductor(function, *arguments):
    """Call a function of a table with the default backend."""
    before, chosen.backend = chosen.backend, "inductor"
    try:
        return function(*arguments)
    finally:
        chosen.backend = before


def in_parts(function, *arguments):
    """Call a function of a table with buckets so small that each backward runs in many parts."""
    before = wrapped.bucket_limits
    wrapped.bucket_limits = lambda parallel: (100,)
    try:
        return function(*arguments)
    finally:
        wrapped.bucket_limits = before


ORDERS = ("first", "forces", "penalty")


class Energy(nn.Module):
    """An energy per structure, or the loss of a batch if it is computed inside."""

    def __init__(self, order: str = "first", *, inside: bool = False) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.layers = nn.Sequential(
            nn.Linear(3, 8), nn.SiLU(), nn.Linear(8, 5), nn.SiLU(), nn.Linear(5, 1)
        )
        self.order, self.inside = order, inside

    def forward(self, x, energies=None, forces=None):
        if not self.inside:
            return self.layers(x).sum(1)
        return loss_of(lambda x: self.layers(x).sum(1), self.order, x, energies, forces)


def loss_of(energy, order, x, energies, forces):
    """The loss of a batch, whose gradient is of first order or of second."""
    if order == "first":
        return ((energy(x) - energies) ** 2).mean()
    x = x.detach().requires_grad_()
    found = energy(x)
    (gradient,) = torch.autograd.grad(found.sum(), x, create_graph=True)
    if order == "forces":
        return ((found - energies) ** 2).mean() + ((-gradient - forces) ** 2).mean()
    return found.mean() + ((gradient.norm(dim=1) - 1) ** 2).mean()


def batch(step: int, rank: int, size: int = 4) -> tuple[torch.Tensor, ...]:
    """Positions, energies and forces that one rank sees at a step."""
    made = torch.Generator().manual_seed(1000 * step + rank)
    shapes = ((size, 3), (size,), (size, 3))
    return tuple(torch.randn(shape, generator=made) for shape in shapes)


def whole(tensor: torch.Tensor) -> torch.Tensor:
    """All of a tensor, that may be sharded."""
    return tensor.full_tensor() if hasattr(tensor, "full_tensor") else tensor


def reference(order: str, steps: int, ranks: int, passes: int = 1) -> list[list[torch.Tensor]]:
    """The gradients at each step of a training in one process, on the batches of all ranks."""
    model = Energy(order)
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    found = []
    for step in range(steps):
        for index in range(passes):
            batches = [batch(passes * step + index, rank) for rank in range(ranks)]
            loss = sum(loss_of(model, order, *each) for each in batches) / ranks
            loss.backward()
        found.append([parameter.grad.clone() for parameter in model.parameters()])
        optimizer.step()
        optimizer.zero_grad()
    return found
