"""More force fields: NequIP, which computes beside data of float64, TorchMD-Net, TorchANI."""

import pytest
import torch
from training import check

pytestmark = pytest.mark.filterwarnings("ignore")


@pytest.fixture
def _double():
    """NequIP asks for this default, whatever the model computes in."""
    before = torch.get_default_dtype()
    torch.set_default_dtype(torch.float64)
    yield
    torch.set_default_dtype(before)


def squares(energy, forces):
    return 1e-3 * energy.square().sum() + forces.square().sum()


def frames_of_nequip(step):
    """Two molecules in a batch, whose sizes change from step to step."""
    from ase import Atoms
    from nequip.data import AtomicDataDict, from_ase
    from nequip.data.transforms import ChemicalSpeciesToAtomTypeMapper, NeighborListTransform

    types = ChemicalSpeciesToAtomTypeMapper(
        model_type_names=["H", "C"], chemical_species_to_atom_type_map={"H": "H", "C": "C"}
    )
    frames = []
    for _ in range(2):
        atoms = Atoms(["H", "C"] * 3 + ["H"] * (step % 2), torch.rand(6 + step % 2, 3) * 4)
        frames.append(NeighborListTransform(r_max=4.0)(types(from_ase(atoms))))
    return AtomicDataDict.batched_from_list(frames)


@pytest.mark.usefixtures("_double")
def test_nequip():
    """The kind of model that its own test of compilation in training has."""
    from nequip.model import NequIPGNNModel
    from nequip.utils.global_state import set_global_state

    set_global_state(allow_tf32=False)

    def make():
        return NequIPGNNModel(
            seed=123,
            model_dtype="float64",
            type_names=["H", "C"],
            r_max=4.0,
            num_layers=2,
            l_max=1,
            parity=True,
            num_features=4,
            radial_mlp_width=8,
            avg_num_neighbors=20.0,
        )

    def loss(function, data):
        found = function({**data, "pos": data["pos"].detach()})
        return squares(found["total_energy"], found["forces"])

    check(make, loss, lambda step: (frames_of_nequip(step),), steps=20, tolerance=1e-8)


def test_torchmd_net():
    """TensorNet; its neighbours are found by kernels of Warp, and decide sizes."""
    from torchmdnet.models.model import create_model

    settings = {
        "model": "tensornet",
        "precision": 32,
        "embedding_dimension": 8,
        "num_layers": 1,
        "num_rbf": 8,
        "rbf_type": "expnorm",
        "trainable_rbf": False,
        "activation": "silu",
        "cutoff_lower": 0.0,
        "cutoff_upper": 4.0,
        "max_z": 10,
        "max_num_neighbors": 16,
        "equivariance_invariance_group": "O(3)",
        "atom_filter": -1,
        "prior_model": None,
        "output_model": "Scalar",
        "reduce_op": "add",
        "derivative": True,
    }

    def batch(step):
        count = 6 + step % 2
        return torch.arange(count) % 2 + 1, torch.rand(count, 3) * 4, torch.zeros(count).long()

    def loss(function, numbers, positions, group):
        return squares(*function(numbers, positions, group, num_systems=1))

    check(lambda: create_model(dict(settings)), loss, batch, steps=20, programs=3, tolerance=1e-3)
