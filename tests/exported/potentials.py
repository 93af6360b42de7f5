"""Functions that tests export: a small force field, and what eager torch makes of it."""

import torch
from torch import nn

ATOMS = torch.export.Dim("atoms", min=2, max=64)


class ForceField(nn.Module):
    """Pair terms, and a network on sums over neighbours."""

    def __init__(self, dtype=torch.float64):
        super().__init__()
        generator = torch.Generator().manual_seed(0)
        self.register_buffer("centres", torch.linspace(0.5, 3.0, 4, dtype=dtype))
        self.hidden = nn.Linear(4, 8).to(dtype)
        self.out = nn.Linear(8, 1).to(dtype)
        with torch.no_grad():
            for parameter in self.parameters():
                parameter.copy_(torch.rand(parameter.shape, generator=generator, dtype=dtype) - 0.5)

    def forward(self, positions):
        apart = positions.unsqueeze(0) - positions.unsqueeze(1)
        eye = torch.eye(positions.shape[0], dtype=positions.dtype)
        distance = ((apart * apart).sum(-1) + eye).sqrt()
        near = (1 - eye) * torch.exp(-distance)
        features = torch.exp(-((distance.unsqueeze(-1) - self.centres) ** 2))
        summed = (near.unsqueeze(-1) * features).sum(1)
        return self.out(torch.tanh(self.hidden(summed))).sum() + (near / distance).sum()


def with_forces(energy):
    """Energy and forces, by ``autograd.grad`` as potentials are written."""

    def energy_and_forces(positions):
        positions = positions.detach().requires_grad_()
        total = energy(positions)
        (gradient,) = torch.autograd.grad(total, positions)
        return {"energy": total.detach(), "forces": -gradient}

    return energy_and_forces


def positions(atoms, dtype=torch.float64):
    generator = torch.Generator().manual_seed(atoms)
    return 3 * torch.rand(atoms, 3, generator=generator, dtype=dtype)
