"""Force fields and layers for molecules: energies, forces, and training on both."""

import copy
import sys
import types

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


def test_visnet(monkeypatch):
    """Its edges are found inside, by a kernel that has no wheel: here by their distances."""
    from torch_geometric.nn.models import visnet

    def radius_graph(positions, r, batch, loop, max_num_neighbors):
        distances = torch.cdist(positions.detach(), positions.detach())
        return (distances < r).nonzero().t()

    monkeypatch.setattr(visnet, "radius_graph", radius_graph)

    def make():
        small = {"num_heads": 2, "num_layers": 2, "hidden_channels": 8, "num_rbf": 6}
        return visnet.ViSNet(**small, cutoff=3.0, max_z=10, derivative=True)

    def loss(function, positions, numbers, edges):
        batch = torch.zeros_like(numbers)
        energy, forces = function(numbers, positions, batch)
        return energy.square().sum() * 1e-2 + forces.square().sum()

    check(make, loss, molecule, tolerance=1e-3)


def test_deepmd(monkeypatch):
    """Its operators in C++ were built for another torch; its models run without them.

    It compares how many atoms and images there are with a number: a program for each.
    """
    absent = types.SimpleNamespace(ENABLE_CUSTOMIZED_OP=False)
    monkeypatch.setitem(sys.modules, "deepmd.pt.cxx_op", absent)
    from deepmd.pt_expt.model.get_model import get_model

    descriptor = {"type": "se_e2_a", "sel": [8, 8], "rcut_smth": 0.5, "rcut": 3.0}
    sizes = {"neuron": [4, 8], "axis_neuron": 4, "precision": "float64", "seed": 1}
    fitting = {"neuron": [8, 8], "precision": "float64", "seed": 1}

    def make():
        given = {"descriptor": descriptor | sizes, "fitting_net": fitting, "type_map": ["O", "H"]}
        return get_model(copy.deepcopy(given))

    def batch(step):
        count = 5 + step % 3
        kinds = (torch.arange(count) % 3 > 0).long()
        positions = torch.rand(2, count, 3, dtype=torch.float64) * 4
        box = 5 * torch.eye(3, dtype=torch.float64).reshape(1, 9)
        return positions.requires_grad_(), kinds.repeat(2, 1), box.repeat(2, 1)

    def loss(function, positions, kinds, box):
        found = function(positions, kinds, box=box)
        return found["energy"].square().sum() * 1e-2 + found["force"].square().sum()

    check(make, loss, batch, programs=4)


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
