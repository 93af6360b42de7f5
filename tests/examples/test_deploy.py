"""The example of ``examples/deploy``: the same dynamics in C++, in ASE and in eager torch."""

import importlib
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import torch

import funcaot
from funcaot.errors import ArgumentError

DEPLOY = Path(__file__).resolve().parents[2] / "examples" / "deploy"
TOOLS = all(shutil.which(tool) for tool in ("cmake", os.environ.get("CXX", "c++")))

# Seconds; a minute where nothing else runs.
LIMIT = 600

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def module():
    sys.path.insert(0, str(DEPLOY))
    try:
        return importlib.import_module("potential")
    finally:
        sys.path.remove(str(DEPLOY))


@pytest.fixture(scope="module")
def building(tmp_path_factory):
    """The program in C++, which is built while the artifact is."""
    folder = tmp_path_factory.mktemp("build")
    wheel = f"-DTORCH={torch.__path__[0]}"
    # At -O0: what takes time is in libtorch and in the artifact.
    run(["cmake", "-S", DEPLOY, "-B", folder, wheel, "-DCMAKE_BUILD_TYPE=Debug"])
    with subprocess.Popen(["cmake", "--build", folder], stdout=subprocess.PIPE) as build:
        yield folder / "dynamics", build
        build.kill()


@pytest.fixture(scope="module")
def path(request, module, tmp_path_factory):
    if TOOLS:
        request.getfixturevalue("building")
    target = tmp_path_factory.mktemp("deploy") / "potential.pt2"
    module.main(str(target))
    return target


def run(command, *, check=True):
    return subprocess.run(command, check=check, capture_output=True, text=True, timeout=LIMIT)


def grid(atoms):
    """The start of ``dynamics.cpp``."""
    side = next(side for side in range(1, atoms + 1) if side**3 >= atoms)
    atom = torch.arange(atoms)
    cell = torch.stack([atom % side, (atom // side) % side, atom // side**2], 1).double()
    return 1.2 * cell + 0.05 * torch.sin(7.0 * atom.double()[:, None] + 3.0 * torch.arange(3))


def verlet(function, positions, steps, time_step):
    """Kinetic and potential energy at the end."""
    velocities = torch.zeros_like(positions)
    _, forces = function(positions)
    for _ in range(steps):
        velocities = velocities + 0.5 * time_step * forces
        positions = positions + time_step * velocities
        energy, forces = function(positions)
        velocities = velocities + 0.5 * time_step * forces
    return 0.5 * (velocities**2).sum().item(), energy.item()


def dynamics(program, path, *numbers):
    done = run([program, path, *map(str, numbers)])
    lines = [line.rsplit(" ", 1) for line in done.stdout.splitlines()]
    return {name: float(value) for name, value in lines}


@pytest.mark.skipif(not TOOLS, reason="needs cmake and a C++ compiler")
def test_dynamics_in_cpp_are_eagers_and_keep_the_energy(module, path, building):
    program, build = building
    said, _ = build.communicate(timeout=LIMIT)
    assert build.returncode == 0, said
    found = dynamics(program, path, 27, 100, 0.005)
    eager = module.with_forces(module.Potential().requires_grad_(False))
    kinetic, energy = verlet(eager, grid(27), 100, 0.005)
    assert found["kinetic energy at the end"] == pytest.approx(kinetic, rel=1e-10)
    assert found["energy at the end"] == pytest.approx(kinetic + energy, rel=1e-10)
    # Velocity Verlet: half the step, a quarter of the drift.
    finer = dynamics(program, path, 27, 200, 0.0025)
    assert found["largest drift"] < 1e-3
    assert found["largest drift"] / finer["largest drift"] == pytest.approx(4, rel=0.1)
    missing = run([program, "no.pt2", "8", "1", "0.1"], check=False)
    assert missing.returncode == 1
    assert "file open failed" in missing.stderr


def test_the_ase_calculator_runs_the_same(module, path):
    pytest.importorskip("ase", reason="needs ASE")
    from ase import Atoms, units
    from ase.calculators.calculator import compare_atoms
    from ase.md.verlet import VelocityVerlet

    from funcaot.ase import Calculator

    atoms = Atoms("H27", positions=grid(27).numpy(), masses=[1.0] * 27)
    atoms.calc = Calculator(path)
    eager = module.with_forces(module.Potential().requires_grad_(False))
    energy, forces = eager(grid(27))
    assert atoms.get_potential_energy() == pytest.approx(energy.item(), rel=1e-10)
    torch.testing.assert_close(torch.from_numpy(atoms.get_forces()), forces)
    # ASE's unit of time is that in which energies are mass times velocity squared.
    with VelocityVerlet(atoms, timestep=0.005) as moving:
        moving.run(100)
    assert units.fs < 1
    kinetic, energy = verlet(eager, grid(27), 100, 0.005)
    assert atoms.get_kinetic_energy() == pytest.approx(kinetic, rel=1e-9)
    assert atoms.get_potential_energy() == pytest.approx(energy, rel=1e-9)
    for change in (
        lambda: None,
        lambda: atoms.positions.__iadd__(1e-9),
        lambda: atoms.set_pbc([True, False, False]),
        lambda: atoms.set_cell([9.0, 9.0, 9.0]),
        lambda: atoms.set_initial_charges([0.5] * 27),
    ):
        atoms.get_forces()
        change()
        changed = atoms.calc.check_state(atoms)
        assert set(changed) == set(compare_atoms(atoms.calc.atoms, atoms))
        assert len(changed) <= 1
    with pytest.raises(ArgumentError, match="positions, numbers"):
        Calculator(path, inputs=("positions", "numbers"))
    with pytest.raises(ArgumentError, match="doesn't know"):
        Calculator(path, outputs=("energy", "mood"))
    atoms.calc = Calculator(path, outputs=("energy",))
    with pytest.raises(ArgumentError, match="doesn't return"):
        atoms.get_potential_energy()


def test_what_is_missing_without_ase_is_said():
    if importlib.util.find_spec("ase") is not None:
        pytest.skip("ASE is installed")
    with pytest.raises(funcaot.errors.FuncaotError, match="isn't installed"):
        importlib.import_module("funcaot.ase")
