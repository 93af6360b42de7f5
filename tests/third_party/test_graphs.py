"""Force fields on graphs of cells: SevenNet, TorchANI, TensorNet of matgl, CHGNet, orb-models.

Each is trained three ways: its model compiled, the loss, or the whole step. Compiled on Inductor
each takes minutes, so it is run op by op; what a graph computes is the same.
"""

import sys
import types

import pytest
import torch
import training
from training import close

import funcaot

pytestmark = pytest.mark.filterwarnings("ignore")
STEPS = 20


def cells(step):
    """Two cells, whose numbers of atoms change from step to step."""
    from ase import Atoms

    found = []
    for count in (4 + step % 2, 6 + step % 2 * 2):
        names = ["Si", "O"] * (count // 2) + ["O"] * (count % 2)
        positions = torch.rand(count, 3).numpy() * 4
        found.append(Atoms(names, positions, cell=[5.0] * 3, pbc=True))
    return found


def squares(energy, forces):
    return 1e-3 * energy.square().sum() + forces.square().sum()


def sevenn():
    from sevenn import _keys
    from sevenn._const import model_defaults
    from sevenn.atom_graph_data import AtomGraphData
    from sevenn.model_build import build_E3_equivariant_model
    from sevenn.train.dataload import unlabeled_atoms_to_graph
    from torch_geometric.data import Batch

    def make():
        small = {"cutoff": 3.0, "channel": 4, "lmax": 1, "num_convolution_layer": 2}
        species = {_keys.NUM_SPECIES: 2, _keys.TYPE_MAP: {8: 0, 14: 1}}
        scales = {"shift": 0.0, "scale": 1.0, "conv_denominator": [10.0] * 2, "version": "0.13.0"}
        config = model_defaults({}) | small | species | scales
        return build_E3_equivariant_model(config | {"weight_nn_hidden_neurons": [8]}).train()

    def batch(step):
        graphs = [unlabeled_atoms_to_graph(atoms, 3.0) for atoms in cells(step)]
        return (Batch.from_data_list(list(map(AtomGraphData.from_numpy_dict, graphs))),)

    def loss(function, data):
        found = function(data.clone())
        return squares(found["inferred_total_energy"], found["inferred_force"])

    return make, loss, batch


def torchani():
    from torchani.arch import simple_ani

    def make():
        return simple_ani(
            ("H", "C", "O"),
            "wb97x-631gd",
            radial_shifts=4,
            angular_shifts=2,
            sections=2,
            self_energies="zero",
            strategy="pyaev",
        )

    def batch(step):
        count = 5 + step % 2
        numbers = torch.tensor([1, 6, 8])[torch.arange(count) % 3].repeat(2, 1)
        return numbers, torch.rand(2, count, 3) * 3

    def loss(function, numbers, positions):
        positions = positions.detach().requires_grad_()
        energy = function((numbers, positions)).energies
        (forces,) = torch.autograd.grad(energy.sum(), positions, create_graph=True)
        return squares(energy, forces)

    return make, loss, batch


def matgl():
    from matgl.apps.pes import Potential
    from matgl.ext.ase import Atoms2Graph
    from matgl.models import TensorNet
    from torch_geometric.data import Batch

    def make():
        small = {"units": 8, "nblocks": 1, "num_rbf": 8, "cutoff": 3.0}
        return Potential(TensorNet(("O", "Si"), is_intensive=False, use_warp=False, **small))

    def batch(step):
        convert = Atoms2Graph(("O", "Si"), cutoff=3.0).get_graph
        graphs, lattices, _ = zip(*map(convert, cells(step)), strict=True)
        return Batch.from_data_list(list(graphs)), torch.stack(lattices).reshape(-1, 3, 3)

    def loss(function, data, lattices):
        energy, forces, stresses, _ = function(data, lattices)
        return squares(energy, forces) + 1e-6 * stresses.square().sum()

    return make, loss, batch


def chgnet():
    from chgnet.graph import CrystalGraphConverter
    from chgnet.model.model import CHGNet
    from pymatgen.io.ase import AseAtomsAdaptor

    cutoffs = {"atom_graph_cutoff": 3.0, "bond_graph_cutoff": 2.5}

    def make():
        dims = dict.fromkeys(("atom_fea_dim", "bond_fea_dim", "angle_fea_dim"), 8)
        hidden = {"atom_conv_hidden_dim": 8, "bond_conv_hidden_dim": 8, "mlp_hidden_dims": (8,)}
        basis = {"num_radial": 4, "num_angular": 3, "n_conv": 2, "composition_model": None}
        return CHGNet(**dims, **hidden, **basis, **cutoffs)

    def batch(step):
        ways = {"algorithm": "legacy", "on_isolated_atoms": "ignore"}
        convert = CrystalGraphConverter(**cutoffs, **ways)
        return ([convert(AseAtomsAdaptor.get_structure(atoms)) for atoms in cells(step)],)

    def loss(function, graphs):
        for graph in graphs:
            graph.atom_frac_coord.requires_grad_()
        found = function(graphs, task="efs")
        forces = sum(force.square().sum() for force in found["f"])
        stresses = sum(stress.square().sum() for stress in found["s"])
        return 1e-3 * found["e"].square().sum() + forces + 1e-6 * stresses

    return make, loss, batch


def orb_models():
    # It imports what downloads weights.
    sys.modules.setdefault("cached_path", types.SimpleNamespace(cached_path=None))
    from orb_models.forcefield import base, pretrained
    from orb_models.forcefield.atomic_system import SystemConfig, ase_atoms_to_atom_graphs

    system = SystemConfig(radius=3.0, max_num_neighbors=20)

    def make():
        dims = dict.fromkeys(("latent_dim", "base_mlp_hidden_dim", "head_mlp_hidden_dim"), 16)
        given = {"num_message_passing_steps": 1, "device": "cpu", "system_config": system}
        return pretrained.orb_v3_conservative_architecture(**dims, **given)

    def batch(step):
        graphs = [ase_atoms_to_atom_graphs(atoms, system) for atoms in cells(step)]
        return (base.batch_graphs(graphs),)

    def loss(function, graphs):
        found = function(graphs.clone())
        return 1e-6 * squares(found["energy"], found["grad_forces"])

    return make, loss, batch


# As a compiled model orb-models stores leaves that it makes in its argument, which is refused.
CASES = [
    (library, way)
    for library in (sevenn, torchani, matgl, chgnet, orb_models)
    for way in ("model", "loss", "step")
    if (library, way) != (orb_models, "model")
]


def train(library, way):
    """Losses and parameters after all steps, and the number of programs."""
    make, loss, batch = library()
    torch.manual_seed(0)
    model = make()
    optimizer = torch.optim.SGD(model.parameters(), 1e-4)
    function = funcaot.compile(model, backend=training.OP_BY_OP) if way == "model" else model
    compiled = function

    def by_loss(*given):
        return loss(function, *given)

    if way == "loss":
        by_loss = compiled = funcaot.compile(by_loss, backend=training.OP_BY_OP)

    def step(*given):
        optimizer.zero_grad()
        found = by_loss(*given)
        found.backward()
        optimizer.step()
        return found.detach()

    if way == "step":
        step = compiled = funcaot.compile(step, backend=training.OP_BY_OP)
    losses = []
    for number in range(STEPS):
        torch.manual_seed(number)
        given = batch(number)
        torch.manual_seed(number)
        losses.append(step(*given))
    programs = 0 if way == "eager" else funcaot.report(compiled).cache_misses
    return [*losses, *(parameter.detach() for parameter in model.parameters())], programs


def named(given):
    return given if isinstance(given, str) else given.__name__


@pytest.mark.parametrize(("library", "way"), CASES, ids=named)
def test_a_force_field_on_graphs(library, way):
    found, programs = train(library, way)
    for ours, theirs in zip(found, train(library, "eager")[0], strict=True):
        close(ours, theirs, 1e-3)
    # Sizes of CHGNet's graphs that are equal by chance in one call cost another program.
    assert programs <= (6 if library is chgnet else 3)
