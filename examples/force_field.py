"""Train a force field of SchNetPack (PaiNN) on energies and forces of copper and gold crystals.

The structures are strained, rattled alloys, some with a vacancy; labels come from ASE's effective
medium theory. The model is the library's own, unmodified: it takes forces inside of its forward, so
training differentiates twice. Sizes change from batch to batch, and one program is for all of them.

    python examples/force_field.py [--steps 300] [--compare] [--threads 1] [--backend inductor]

Prints the errors against the reference before and after, and draws predictions over references.
With ``--compare`` a second model is trained in eager mode, and steps of both are timed in turns.
Needs ``schnetpack`` and ``ase``.
"""

from __future__ import annotations

import functools
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import matplotlib as mpl

mpl.use("Agg")
import matplotlib.pyplot as plt
import numpy as np
import torch
from torch import Tensor, nn

import funcaot
from side_by_side import command_line, console, milliseconds, ratio

ELEMENTS = (29, 79)  # Cu, Au
CUTOFF = 4.5
BATCH = 16
Batch = dict[str, Tensor]


def library() -> Any:
    """SchNetPack, or the end of the program with what to install."""
    # SchNetPack 2.1 imports this name from where torch no longer has it.
    vars(torch.utils.data.dataloader).setdefault("T_co", None)
    try:
        import ase  # noqa: F401
        import schnetpack
    except ImportError as error:
        raise SystemExit(
            f"This example trains a model of SchNetPack on data of ASE, and {error.name!r} is"
            " missing: pip install schnetpack ase"
        ) from error
    return schnetpack


def structures(count: int, seed: int) -> list[dict[str, np.ndarray]]:
    """Crystals of seven or eight atoms in a periodic cell, with their edges and their labels."""
    from ase.build import bulk
    from ase.calculators.emt import EMT
    from ase.neighborlist import neighbor_list

    random = np.random.default_rng(seed)
    found = []
    for _ in range(count):
        atoms = bulk("Cu", "fcc", a=random.uniform(3.7, 4.1)).repeat(2)
        atoms.numbers[:] = random.choice(ELEMENTS, len(atoms))
        if random.random() < 0.5:
            del atoms[random.integers(len(atoms))]
        strain = np.eye(3) + random.normal(scale=0.02, size=(3, 3))
        atoms.set_cell(atoms.cell @ strain, scale_atoms=True)
        atoms.positions += random.normal(scale=0.1, size=atoms.positions.shape)
        atoms.calc = EMT()
        i, j, images = neighbor_list("ijS", atoms, CUTOFF)
        found.append(
            {
                "_positions": atoms.positions,
                "_atomic_numbers": atoms.numbers,
                "_cell": atoms.cell.array[None],
                "_idx_i": i,
                "_idx_j": j,
                "_offsets": images @ atoms.cell.array,
                "energy": np.array([atoms.get_potential_energy()]),
                "forces": atoms.get_forces(),
            }
        )
    return found


def shift_energies(groups: Sequence[list[dict[str, np.ndarray]]]) -> None:
    """Take off the energy of each kind of atom, fitted to the first group."""

    def counts(group: list[dict[str, np.ndarray]]) -> np.ndarray:
        return np.array([[(s["_atomic_numbers"] == z).sum() for z in ELEMENTS] for s in group])

    energies = np.concatenate([structure["energy"] for structure in groups[0]])
    fitted = np.linalg.lstsq(counts(groups[0]), energies, rcond=None)[0]
    for group in groups:
        for structure, shift in zip(group, counts(group) @ fitted, strict=True):
            structure["energy"] = structure["energy"] - shift


def batch_of(group: list[dict[str, np.ndarray]]) -> Batch:
    """Several structures as one graph, by the names that SchNetPack gives to its inputs."""
    atoms = np.array([len(structure["_positions"]) for structure in group])
    first = np.cumsum(atoms) - atoms
    joined = {key: np.concatenate([structure[key] for structure in group]) for key in group[0]}
    edges = [len(structure["_idx_i"]) for structure in group]
    for key in ("_idx_i", "_idx_j"):
        joined[key] = joined[key] + np.repeat(first, edges)
    joined["_idx_m"] = np.repeat(np.arange(len(group)), atoms)
    joined["_n_atoms"] = atoms
    return {
        key: torch.tensor(value, dtype=torch.int64 if value.dtype.kind == "i" else torch.float32)
        for key, value in joined.items()
    }


def new_model(features: int) -> nn.Module:
    """PaiNN with energies and forces."""
    spk = library()
    torch.manual_seed(0)
    return spk.model.NeuralNetworkPotential(
        representation=spk.representation.PaiNN(
            n_atom_basis=features,
            n_interactions=2,
            radial_basis=spk.nn.GaussianRBF(20, CUTOFF),
            cutoff_fn=spk.nn.CosineCutoff(CUTOFF),
        ),
        input_modules=[spk.atomistic.PairwiseDistances()],
        output_modules=[
            spk.atomistic.Atomwise(n_in=features, output_key="energy"),
            spk.atomistic.Forces(),
        ],
    )


class Training:
    """A model, its optimizer, and the loss, compiled unless ``backend`` is "none"."""

    def __init__(self, batches: list[Batch], backend: str, features: int = 32) -> None:
        self.model = new_model(features)
        self.optimizer = torch.optim.Adam(self.model.parameters(), lr=5e-3)
        self.batches = batches
        self.loss = self.loss_of
        if backend != "none":
            # Open sizes from the start: no two batches have the same number of edges.
            self.loss = funcaot.compile(self.loss_of, dynamic=True, backend=backend)

    def predict(self, batch: Batch) -> tuple[Tensor, Tensor]:
        """Energies and forces."""
        # The model asks for a gradient of the positions that it is given: not of the caller's.
        found = self.model({**batch, "_positions": batch["_positions"].detach()})
        return found["energy"], found["forces"]

    def loss_of(self, batch: Batch) -> Tensor:
        energies, forces = self.predict(batch)
        per_atom = (energies - batch["energy"]) / batch["_n_atoms"]
        return 10 * per_atom.square().mean() + (forces - batch["forces"]).square().mean()

    def step(self, index: int) -> Tensor:
        loss = self.loss(self.batches[index % len(self.batches)])
        self.optimizer.zero_grad()
        loss.backward()
        self.optimizer.step()
        return loss.detach()

    def errors(self, batch: Batch) -> tuple[float, float]:
        """Mean absolute errors in meV per atom and in meV/Å."""
        energies, forces = self.predict(batch)
        per_atom = (energies - batch["energy"]) / batch["_n_atoms"]
        return tuple(
            1e3 * each.detach().abs().mean().item() for each in (per_atom, forces - batch["forces"])
        )


def data(count: int) -> tuple[list[Batch], Batch]:
    """Batches to train on, and one of other structures to test on."""
    train, test = structures(count, seed=0), structures(count // 4, seed=1)
    shift_energies([train, test])
    return [batch_of(train[at : at + BATCH]) for at in range(0, count, BATCH)], batch_of(test)


def draw(training: Training, batch: Batch, figure: Path) -> None:
    """Predictions over references: on the diagonal where they are right."""
    energies, forces = training.predict(batch)
    per_atom = [(each / batch["_n_atoms"]).detach() for each in (batch["energy"], energies)]
    panels = {
        "energy per atom, eV": per_atom,
        "components of forces, eV/Å": [batch["forces"].flatten(), forces.detach().flatten()],
    }
    fig, axes = plt.subplots(1, 2, figsize=(9, 4.2), layout="constrained")
    for axis, (name, (reference, predicted)) in zip(axes, panels.items(), strict=True):
        ends = [min(reference.min(), predicted.min()), max(reference.max(), predicted.max())]
        axis.plot(ends, ends, color="0.6", linewidth=1)
        axis.scatter(reference, predicted, s=8)
        axis.set(title=name, xlabel="effective medium theory", ylabel="PaiNN", aspect="equal")
    figure.parent.mkdir(parents=True, exist_ok=True)
    fig.savefig(figure, dpi=120)
    plt.close(fig)
    console.print(f"figure: {figure}")


def compare(ours: Training, eager: Training, steps: int, losses: list[float], rounds: int) -> None:
    """Train in eager mode too, compare the losses, and time steps of both in turns."""
    expected = [float(eager.step(index)) for index in range(steps)]
    gap = max(abs(a - b) / b for a, b in zip(losses[:20], expected, strict=False))
    console.print(f"largest relative difference of the first 20 losses: {gap:.1e}")
    samples = milliseconds({"funcaot": ours.step, "eager": eager.step}, rounds, seconds=0.2)
    faster = ratio(samples, "eager", "funcaot")
    shown = ", ".join(f"{min(times):.1f} ms {name}" for name, times in samples.items())
    console.print(f"a step: {shown}; eager / funcaot {faster:.2f}")


def main() -> None:
    parser = command_line(__doc__, steps=300, rounds=10)
    parser.add_argument("--compare", action="store_true", help="train in eager mode too")
    told = parser.parse_args()
    torch.set_num_threads(told.threads)
    library()
    batches, test = data(160)
    make = functools.partial(Training, batches)
    training = make(told.backend)
    say = "{}: {:.1f} meV per atom, {:.1f} meV/Å"
    console.print(say.format("errors before", *training.errors(test)))
    began = time.perf_counter()
    losses = [float(training.step(0))]
    console.print(f"first step, with compilation: {time.perf_counter() - began:.1f} s")
    began = time.perf_counter()
    losses += [float(training.step(index)) for index in range(1, told.steps)]
    programs = funcaot.report(training.loss).cache_misses
    console.print(
        f"{told.steps - 1} more steps: {time.perf_counter() - began:.1f} s, programs: {programs}"
    )
    console.print(say.format("errors after", *training.errors(test)))
    draw(training, test, told.figure or Path("build/force_field.png"))
    if told.compare:
        compare(training, make("none"), told.steps, losses, told.rounds)


if __name__ == "__main__":
    main()
