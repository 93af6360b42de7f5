"""Export a potential for ``dynamics.cpp`` and for ``funcaot.ase``: energy and forces of atoms.

    python examples/deploy/potential.py [potential.pt2]

``CMakeLists.txt`` says how to build ``dynamics.cpp``, which then runs without Python:

    ./build/dynamics ../../potential.pt2 27 1000 0.005
"""

from __future__ import annotations

import sys

import torch
from torch import Tensor, nn

import funcaot


class Potential(nn.Module):
    """A short-range repulsion, and a network on sums over neighbours."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.centres = nn.Buffer(torch.linspace(0.6, 3.0, 8))
        self.net = nn.Sequential(nn.Linear(8, 32), nn.SiLU(), nn.Linear(32, 1))
        self.double()

    def forward(self, positions: Tensor) -> Tensor:
        eye = torch.eye(positions.shape[0], dtype=positions.dtype)
        apart = positions.unsqueeze(0) - positions.unsqueeze(1)
        # On the diagonal an atom would meet itself: its distance is 1 and its weight is 0.
        distance = ((apart * apart).sum(-1) + eye).sqrt()
        near = (1 - eye) * torch.exp(-(distance**2))
        features = torch.exp(-2 * (distance.unsqueeze(-1) - self.centres) ** 2)
        neighbours = (near.unsqueeze(-1) * features).sum(1)
        return self.net(neighbours).sum() + (near / distance).sum()


def with_forces(potential: nn.Module):
    """Energy and forces, its negative gradient."""

    def energy_and_forces(positions: Tensor) -> tuple[Tensor, Tensor]:
        gradient, energy = torch.func.grad_and_value(potential)(positions)
        return energy, -gradient

    return energy_and_forces


def main(path: str) -> None:
    atoms = torch.export.Dim("atoms", min=2, max=64)
    example = torch.rand(8, 3, dtype=torch.float64)
    function = with_forces(Potential())
    print(funcaot.export(function, (example,), path=path, dynamic_shapes=({0: atoms},)))


if __name__ == "__main__":
    main(sys.argv[1] if len(sys.argv) > 1 else "potential.pt2")
