"""Force fields of other libraries, unmodified, with random weights, and crystals for them.

A case makes its model, its batch of a size, and its loss of energies and forces; ``own`` makes a
function that the library's own way to compile returns, where it has one.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

Compile = Callable[[Any], Any]


@dataclass(frozen=True)
class Potential:
    """A model and what it is trained with; ``distribution`` is what pip calls the library."""

    distribution: str
    modules: tuple[str, ...]
    aim: float
    parts: Callable[[], tuple[Callable[[], Any], Callable[[int], Any], Callable[..., Any]]]
    own: Callable[[], Any] | None = None


def diamond(removed: int, cells: int = 2) -> Any:
    """A rattled crystal of carbon without some of its atoms."""
    from ase.build import bulk

    atoms = bulk("C", "diamond", a=3.567, cubic=True).repeat((cells,) * 3)
    del atoms[:removed]
    atoms.rattle(0.02, seed=removed)
    return atoms


def edges_of(atoms: Any, cutoff: float) -> tuple[torch.Tensor, torch.Tensor]:
    """Pairs of atoms, and by what the second is shifted."""
    from ase.neighborlist import neighbor_list

    i, j, images = neighbor_list("ijS", atoms, cutoff)
    shifts = torch.tensor(images @ atoms.cell.array, dtype=torch.float32)
    return torch.tensor(np.stack([i, j])), shifts


def squares(energy: torch.Tensor, forces: torch.Tensor) -> torch.Tensor:
    return 1e-4 * energy.square().sum() + forces.square().mean()


# --- MACE: the model and the crystal of its tests/test_compile.py --------------------------------


def new_mace() -> Any:
    from e3nn import o3
    from mace import modules

    torch.manual_seed(0)
    block = modules.interaction_classes["RealAgnosticResidualInteractionBlock"]
    return modules.ScaleShiftMACE(
        r_max=5.0,
        num_bessel=8,
        num_polynomial_cutoff=6,
        max_ell=3,
        interaction_cls=block,
        interaction_cls_first=block,
        num_interactions=2,
        num_elements=1,
        hidden_irreps=o3.Irreps("128x0e + 128x1o"),
        MLP_irreps=o3.Irreps("16x0e"),
        gate=torch.nn.functional.silu,
        atomic_energies=np.array([1.0]),
        avg_num_neighbors=8,
        atomic_numbers=[6],
        correlation=3,
        radial_type="bessel",
        atomic_inter_scale=1.0,
        atomic_inter_shift=0.0,
    )


def mace_parts() -> Any:
    def batch(removed: int) -> dict[str, torch.Tensor]:
        atoms = diamond(removed)
        edges, shifts = edges_of(atoms, 5.0)
        count = len(atoms)
        return {
            "positions": torch.tensor(atoms.positions, dtype=torch.float32),
            "node_attrs": torch.ones(count, 1),
            "edge_index": edges,
            "shifts": shifts,
            "unit_shifts": shifts,
            "cell": torch.tensor(atoms.cell.array, dtype=torch.float32),
            "batch": torch.zeros(count, dtype=torch.long),
            "ptr": torch.tensor([0, count]),
            "head": torch.zeros(1, dtype=torch.long),
        }

    def loss(model: Any, inputs: Any) -> torch.Tensor:
        found = model({**inputs, "positions": inputs["positions"].detach()}, training=True)
        return squares(found["energy"], found["forces"])

    return new_mace, batch, loss


def prepared_mace() -> Any:
    """As MACE's documentation compiles it; the positions need a gradient before the call."""
    from mace.tools import compile as mace_compile

    model = mace_compile.prepare(new_mace)()
    compiled = torch.compile(model, fullgraph=True)

    def call(inputs: Any, training: bool) -> Any:
        positions = inputs["positions"].detach().requires_grad_()
        return compiled({**inputs, "positions": positions}, training=training)

    call.parameters = model.parameters
    return call


# --- SchNetPack ----------------------------------------------------------------------------------


def schnetpack_parts() -> Any:
    # It imports a name that torch has elsewhere now.
    vars(torch.utils.data.dataloader).setdefault("T_co", None)
    import schnetpack as spk

    def make() -> Any:
        torch.manual_seed(0)
        return spk.model.NeuralNetworkPotential(
            representation=spk.representation.PaiNN(
                n_atom_basis=64,
                n_interactions=3,
                radial_basis=spk.nn.GaussianRBF(20, 5.0),
                cutoff_fn=spk.nn.CosineCutoff(5.0),
            ),
            input_modules=[spk.atomistic.PairwiseDistances()],
            output_modules=[
                spk.atomistic.Atomwise(n_in=64, output_key="energy"),
                spk.atomistic.Forces(),
            ],
        )

    def batch(removed: int) -> dict[str, torch.Tensor]:
        atoms = diamond(removed)
        edges, shifts = edges_of(atoms, 5.0)
        return {
            "_positions": torch.tensor(atoms.positions, dtype=torch.float32),
            "_atomic_numbers": torch.tensor(atoms.numbers),
            "_cell": torch.tensor(atoms.cell.array, dtype=torch.float32)[None],
            "_idx_i": edges[0],
            "_idx_j": edges[1],
            "_offsets": shifts,
            "_idx_m": torch.zeros(len(atoms), dtype=torch.long),
            "_n_atoms": torch.tensor([len(atoms)]),
        }

    def loss(model: Any, inputs: Any) -> torch.Tensor:
        found = model({**inputs, "_positions": inputs["_positions"].detach()})
        return squares(found["energy"], found["forces"])

    return make, batch, loss


# --- NequIP --------------------------------------------------------------------------------------


def new_nequip(compile_mode: str = "eager") -> Any:
    from nequip.model import NequIPGNNModel
    from nequip.utils.global_state import set_global_state

    set_global_state(allow_tf32=False)
    return NequIPGNNModel(
        seed=0,
        model_dtype="float32",
        compile_mode=compile_mode,
        type_names=["C"],
        r_max=4.0,
        num_layers=2,
        l_max=1,
        parity=False,
        num_features=32,
        avg_num_neighbors=20.0,
    )


def nequip_parts() -> Any:
    from nequip.data import AtomicDataDict, from_ase
    from nequip.data.transforms import ChemicalSpeciesToAtomTypeMapper, NeighborListTransform

    # Its data are of float64, and so is torch's default, whatever the model computes in.
    torch.set_default_dtype(torch.float64)

    def batch(removed: int) -> dict[str, torch.Tensor]:
        types = ChemicalSpeciesToAtomTypeMapper(
            model_type_names=["C"], chemical_species_to_atom_type_map={"C": "C"}
        )
        neighbours = NeighborListTransform(r_max=4.0)
        # Two crystals: NequIP doesn't compile for one.
        frames = [neighbours(types(from_ase(diamond(removed)))) for _ in range(2)]
        return AtomicDataDict.batched_from_list(frames)

    def loss(model: Any, inputs: Any) -> torch.Tensor:
        found = model({**inputs, "pos": inputs["pos"].detach()})
        return squares(found["total_energy"], found["forces"])

    return new_nequip, batch, loss


def compiled_nequip() -> Any:
    """Its compilation for training: ``make_fx``, then ``torch.compile``."""
    return new_nequip("compile")


# --- TorchMD-Net ---------------------------------------------------------------------------------


def torchmdnet_parts() -> Any:
    from torchmdnet.models.model import create_model

    settings = {
        "model": "tensornet",
        "precision": 32,
        "embedding_dimension": 64,
        "num_layers": 2,
        "num_rbf": 32,
        "rbf_type": "expnorm",
        "trainable_rbf": False,
        "activation": "silu",
        "cutoff_lower": 0.0,
        "cutoff_upper": 4.0,
        "max_z": 20,
        "max_num_neighbors": 64,
        "equivariance_invariance_group": "O(3)",
        "atom_filter": -1,
        "prior_model": None,
        "output_model": "Scalar",
        "reduce_op": "add",
        "derivative": True,
    }

    def make() -> Any:
        torch.manual_seed(0)
        return create_model(dict(settings))

    def batch(removed: int) -> tuple[torch.Tensor, ...]:
        atoms = diamond(removed)
        positions = torch.tensor(atoms.positions, dtype=torch.float32)
        return torch.tensor(atoms.numbers), positions, torch.zeros(len(atoms), dtype=torch.long)

    def loss(model: Any, inputs: Any) -> torch.Tensor:
        numbers, positions, group = inputs
        energy, forces = model(numbers, positions.detach(), group, num_systems=1)
        return squares(energy, forces)

    return make, batch, loss


POTENTIALS = {
    "MACE": Potential("mace-torch", ("mace", "e3nn", "ase"), 0.6, mace_parts, prepared_mace),
    "SchNetPack": Potential("schnetpack", ("schnetpack", "ase"), 0.7, schnetpack_parts),
    "NequIP": Potential("nequip", ("nequip", "ase"), 0.7, nequip_parts, compiled_nequip),
    "TorchMD-Net": Potential("torchmd-net", ("torchmdnet", "ase"), 0.7, torchmdnet_parts),
}
