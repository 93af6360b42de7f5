"""Force fields and layers for molecules: energies, forces, and training on both."""

import pytest
import torch
from torch import nn
from training import check

pytestmark = pytest.mark.filterwarnings("ignore")


def molecule(step):
    """Positions, atomic numbers and edges; both numbers change from step to step."""
    count = 6 + step % 3
    positions = torch.rand(count, 3) * 4
    distances = (positions[:, None] - positions[None]).norm(dim=-1)
    edges = ((distances < 3) & (distances > 0)).nonzero().t().contiguous()
    return positions, torch.tensor([1, 6, 8])[torch.arange(count) % 3], edges


def energy_and_force(energy, positions):
    (force,) = torch.autograd.grad(energy.sum(), positions, create_graph=True)
    return energy.pow(2).sum() * 1e-2 + force.pow(2).sum()


@pytest.mark.parametrize("kind", ["SchNet", "PaiNN"])
def test_schnetpack(kind):
    # It imports a name that torch has elsewhere now.
    vars(torch.utils.data.dataloader).setdefault("T_co", None)
    import schnetpack
    from schnetpack import atomistic, representation

    def make():
        return schnetpack.model.NeuralNetworkPotential(
            representation=getattr(representation, kind)(
                n_atom_basis=8,
                n_interactions=2,
                radial_basis=schnetpack.nn.GaussianRBF(6, 3.0),
                cutoff_fn=schnetpack.nn.CosineCutoff(3.0),
            ),
            input_modules=[atomistic.PairwiseDistances()],
            output_modules=[atomistic.Atomwise(n_in=8, output_key="energy"), atomistic.Forces()],
        )

    def batch(step):
        positions, numbers, edges = molecule(step)
        count = len(positions)
        inputs = {
            "_atomic_numbers": numbers,
            "_positions": positions,
            "_idx_i": edges[0],
            "_idx_j": edges[1],
            "_offsets": torch.zeros(edges.shape[1], 3),
            "_idx_m": torch.zeros(count, dtype=torch.long),
            "_n_atoms": torch.tensor([count]),
            "_cell": torch.eye(3)[None] * 10,
        }
        return (inputs,)

    def loss(function, inputs):
        found = function(dict(inputs))
        return found["energy"].pow(2).sum() * 1e-2 + found["forces"].pow(2).sum()

    check(make, loss, batch, tolerance=1e-3)


def test_torchpme():
    """Its meshes ask for ``len(positions)``."""
    import torchpme

    class Model(nn.Module):
        def __init__(self):
            super().__init__()
            self.charges = nn.Parameter(torch.randn(9))
            potential = torchpme.CoulombPotential(smearing=1.0)
            self.mesh = torchpme.PMECalculator(potential, mesh_spacing=1.0)

        def forward(self, positions, numbers, edges):
            charges = self.charges[numbers][:, None]
            distances = (positions[edges[0]] - positions[edges[1]]).norm(dim=-1)
            found = self.mesh(
                charges=charges,
                cell=torch.eye(3) * 10,
                positions=positions,
                neighbor_indices=edges.t(),
                neighbor_distances=distances,
            )
            return (found * charges).sum()

    def loss(function, positions, numbers, edges):
        positions = positions.requires_grad_()
        return energy_and_force(function(positions, numbers, edges), positions)

    check(Model, loss, molecule, steps=4, tolerance=1e-3)


class Neighbours(nn.Module):
    """Edges that are found inside of the model."""

    def forward(self, positions, batch):
        distances = torch.cdist(positions.detach(), positions.detach())
        edges = ((distances < 3) & (distances > 0)).nonzero().t()
        return edges, (positions[edges[0]] - positions[edges[1]]).norm(dim=-1)


def test_schnet_of_pytorch_geometric():
    from torch_geometric.nn.models import SchNet

    def make():
        return SchNet(8, 8, 2, 5, cutoff=3.0, interaction_graph=Neighbours())

    def loss(function, positions, numbers, edges):
        positions = positions.requires_grad_()
        return energy_and_force(function(numbers, positions), positions)

    check(make, loss, molecule, tolerance=1e-3)


def test_egnn():
    import egnn_pytorch

    def loss(function, features, positions):
        positions = positions.requires_grad_()
        features, moved = function(features, positions)
        # Larger losses make the parameters infinite, in eager too.
        return 1e-4 * energy_and_force(features.pow(2).sum() + moved.pow(2).sum(), positions)

    check(
        lambda: egnn_pytorch.EGNN(dim=4),
        loss,
        lambda step: (0.1 * torch.randn(1, 5 + step % 2, 4), torch.randn(1, 5 + step % 2, 3)),
        tolerance=1e-3,
    )
