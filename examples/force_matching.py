"""Fit an energy network to energies and forces of metal clusters, several ways.

The loss holds forces, the gradient of the energy, so training takes a derivative of a derivative.
Structures are rattled icosahedra of Cu, Ag and Au; labels come from ASE's effective medium theory.

    python examples/force_matching.py [--steps 100] [--threads 1] [--backend inductor]

Needs ``ase``; with ``jax`` installed, the same step under ``jax.jit`` is timed too.
"""

from __future__ import annotations

import functools

import numpy as np
import torch
from torch import Tensor, nn

import funcaot
from side_by_side import Makers, Step, command_line, compare_as_told, with_jax

ELEMENTS = ("Cu", "Ag", "Au")
CENTERS = np.linspace(1.5, 7.0, 24)


def structures(count: int = 96, seed: int = 0) -> dict[str, np.ndarray]:
    """Positions, species, energies and forces of rattled 13-atom clusters."""
    from ase.calculators.emt import EMT
    from ase.cluster import Icosahedron

    random = np.random.default_rng(seed)
    found: dict[str, list] = {"x": [], "z": [], "e": [], "f": []}
    for _ in range(count):
        atoms = Icosahedron("Cu", 2, latticeconstant=random.uniform(3.7, 4.2))
        species = random.integers(0, len(ELEMENTS), len(atoms))
        atoms.symbols[:] = [ELEMENTS[i] for i in species]
        atoms.positions += random.normal(scale=0.15, size=atoms.positions.shape)
        atoms.calc = EMT()
        for key, value in zip(
            "xzef",
            (atoms.positions, species, atoms.get_potential_energy(), atoms.get_forces()),
            strict=True,
        ):
            found[key].append(value)
    data = {key: np.array(value) for key, value in found.items()}
    data["e"] = (data["e"] - data["e"].mean()) / len(data["f"][0])
    return {key: v.astype(np.int64 if key == "z" else np.float32) for key, v in data.items()}


class Energy(nn.Module):
    """Sum over atoms of a network of radial features, weighted by the pair's species."""

    def __init__(self) -> None:
        super().__init__()
        features = len(CENTERS)
        self.pairs = nn.Parameter(0.5 * torch.randn(len(ELEMENTS), len(ELEMENTS), features))
        self.net = nn.Sequential(
            nn.Linear(features, 64), nn.SiLU(), nn.Linear(64, 64), nn.SiLU(), nn.Linear(64, 1)
        )
        self.register_buffer("centers", torch.tensor(CENTERS, dtype=torch.float32))
        self.register_buffer("others", ~torch.eye(13, dtype=torch.bool))

    def forward(self, x: Tensor, z: Tensor) -> Tensor:
        difference = x[:, :, None] - x[:, None]
        squared = (difference**2).sum(-1)
        distance = torch.where(self.others, squared, 1.0).sqrt()
        radial = torch.exp(-2.0 * (distance[..., None] - self.centers) ** 2)
        radial = radial * self.pairs[z[:, :, None], z[:, None]] * self.others[..., None]
        return self.net(radial.sum(2)).sum((1, 2))


def loss_of(energy, x: Tensor, z: Tensor, e: Tensor, f: Tensor) -> Tensor:
    """Mean squared errors of energies per atom and of forces."""
    x = x.detach().requires_grad_()
    energies = energy(x, z)
    (gradient,) = torch.autograd.grad(energies.sum(), x, create_graph=True)
    return ((energies / x.shape[1] - e) ** 2).mean() + ((gradient + f) ** 2).mean()


def keep_exponentials(candidate) -> bool | None:
    """Don't compute them again: two derivatives would."""
    return True if candidate.op.startswith("aten.exp.") else None


def make(way: str, batches: list, backend: str) -> Step:
    """A training step, from the same start."""
    torch.manual_seed(0)
    model = Energy()
    optimizer = torch.optim.Adam(model.parameters(), lr=2e-3)
    compiler = functools.partial(funcaot.compile, backend=backend)
    energy, loss_function, update = model, loss_of, optimizer.step
    if way == "torch.compile of the energy":
        energy, update = torch.compile(model), torch.compile(update)
    elif way.startswith("funcaot"):
        update = compiler(update)
    if way == "funcaot: energy":
        energy = compiler(model, policy=keep_exponentials)
    elif way.startswith("funcaot"):
        loss_function = compiler(lambda x, z, e, f: loss_of(model, x, z, e, f))
        energy = None

    def step(index: int) -> Tensor:
        x, z, e, f = batches[index % len(batches)]
        arguments = (x, z, e, f) if energy is None else (energy, x, z, e, f)
        loss = loss_function(*arguments)
        optimizer.zero_grad()
        loss.backward()
        update()
        return loss.detach()

    if way != "funcaot: whole step":
        return step

    @compiler
    def whole(x: Tensor, z: Tensor, e: Tensor, f: Tensor) -> Tensor:
        loss = loss_of(model, x, z, e, f)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        return loss.detach()

    return lambda index: whole(*batches[index % len(batches)])


def make_jax(batches: list) -> Step:
    """The same step for ``jax.jit``, from the same start."""
    import jax
    import jax.numpy as jnp

    from jax_step import TrainingStep, linear

    torch.manual_seed(0)
    model = Energy()
    centers, others = jnp.asarray(model.centers.numpy()), jnp.asarray(model.others.numpy())

    def energy(p, x, z):
        squared = ((x[:, :, None] - x[:, None]) ** 2).sum(-1)
        distance = jnp.sqrt(jnp.where(others, squared, 1.0))
        radial = jnp.exp(-2.0 * (distance[..., None] - centers) ** 2)
        h = (radial * p["pairs"][z[:, :, None], z[:, None]] * others[..., None]).sum(2)
        h = jax.nn.silu(linear(p, "net.2", jax.nn.silu(linear(p, "net.0", h))))
        return linear(p, "net.4", h).sum((1, 2))

    def loss_of(p, x, z, e, f):
        energies, pull = jax.vjp(lambda x: energy(p, x, z), x)
        (gradient,) = pull(jnp.ones_like(energies))
        return ((energies / x.shape[1] - e) ** 2).mean() + ((gradient + f) ** 2).mean()

    return TrainingStep(loss_of, model, batches, rate=2e-3)


WAYS = (
    "eager",
    "torch.compile of the energy",
    "funcaot: energy",
    "funcaot: energy and forces",
    "funcaot: whole step",
)


def makers(backend: str = "inductor") -> Makers:
    """Every way to run the step."""
    data = structures()
    batches = [
        [torch.from_numpy(data[key][i : i + 32]) for key in "xzef"] for i in range(0, 96, 32)
    ]
    ways = {way: functools.partial(make, way, batches, backend) for way in WAYS}
    return with_jax(ways, functools.partial(make_jax, batches))


def main() -> None:
    told = command_line(__doc__, steps=100, rounds=30).parse_args()
    title = "Force matching: Adam on energies and forces of 32 clusters"
    compare_as_told(title, "force_matching", makers(told.backend), told)


if __name__ == "__main__":
    main()
