"""Shipping: the first gradient of a second process, and a call of a potential's forces.

The first part starts fresh processes, caches on disk kept: one that compiles, and another whose CPU
seconds from the first call to the first gradient are measured, imports of compilers included if it
makes them. The second part measures microseconds per call of energy and forces of 27 atoms, one
thread, the fastest of some rounds, the ways in turns in one process; the program in C++ is built
with cmake if there is one.
It runs funcaot's artifact and the package of make_fx and AOTInductor, and so do calculators of ASE.
Run ``python benchmarks/deploy.py``; ``--only "GPT, 24 layers"`` measures that first gradient alone.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import tempfile
import time
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from common import (
    Clock,
    Failures,
    Target,
    environment_of,
    parser_of,
    print_table,
    print_targets,
    progress,
    write_json,
)
from models import Gpt, models
from torch import nn

import funcaot

ROOT = Path(__file__).resolve().parent.parent
WAYS = ("torch.compile", "funcaot", "funcaot, artifacts")
TIMEOUT = 600
ATOMS, CALLS, ROUNDS = 27, 100, 20
STEPS, RUNS = 2000, 20
OURS, THEIRS = "funcaot", "make_fx and AOTInductor"
# The same for a program of these atoms alone; funcaot's artifact serves 2 to 64.
ONE_SIZE = f"{THEIRS}, one size"
PACKAGES = {OURS: "forces.pt2", THEIRS: "fx.pt2", ONE_SIZE: "fixed.pt2"}


class Energy(nn.Module):
    """An energy network of pairs, as in examples/force_matching.py, on made-up clusters."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("centers", torch.linspace(1.5, 7.0, 24))
        self.register_buffer("others", ~torch.eye(13, dtype=torch.bool))
        self.net = nn.Sequential(
            nn.Linear(24, 64), nn.SiLU(), nn.Linear(64, 64), nn.SiLU(), nn.Linear(64, 1)
        )

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        squared = ((x[:, :, None] - x[:, None]) ** 2).sum(-1)
        distance = torch.where(self.others, squared, 1.0).sqrt()
        radial = torch.exp(-2.0 * (distance[..., None] - self.centers) ** 2)
        return self.net((radial * self.others[..., None]).sum(2)).sum((1, 2))


def cases() -> dict[str, Callable[[], tuple[nn.Module, tuple[torch.Tensor, ...]]]]:
    def large() -> tuple[nn.Module, tuple[torch.Tensor, ...]]:
        _, arguments = models()["GPT, 4 layers"]
        return Gpt(layers=24), arguments

    def forces() -> tuple[nn.Module, tuple[torch.Tensor, ...]]:
        torch.manual_seed(0)
        return Energy(), ((4 * torch.rand(32, 13, 3)).requires_grad_(),)

    named = {name: (lambda name=name: models()[name]) for name in models()}
    return {**named, "GPT, 24 layers": large, "force matching": forces}


def cpu_seconds() -> float:
    times = os.times()
    return times.user + times.system + times.children_user + times.children_system


def child(way: str, case: str, path: str) -> dict[str, Any]:
    """One measurement, in this process."""
    model, arguments = cases()[case]()
    if way == "torch.compile":
        compiled: Any = torch.compile(model)
    else:
        artifacts = path if way.endswith("artifacts") else None
        compiled = funcaot.compile(model, artifacts=artifacts)
    began, used = time.perf_counter(), cpu_seconds()
    result = compiled(*arguments)
    if case == "force matching":
        (gradient,) = torch.autograd.grad(result.sum(), arguments[0], create_graph=True)
        result = gradient.square().mean() + result.square().mean()
    result.backward()
    found = {"cpu": cpu_seconds() - used, "wall": time.perf_counter() - began}
    if way.endswith("artifacts") and funcaot.report(compiled).cache_misses:
        compiled.save(path)
    return found


def second_process(way: str, case: str) -> dict[str, float]:
    with tempfile.TemporaryDirectory() as folder:
        environment = {
            **os.environ,
            "TORCHINDUCTOR_CACHE_DIR": folder,
            "TORCHINDUCTOR_COMPILE_THREADS": "1",
            "FUNCAOT_ARTIFACT_KEY": "the key of the benchmark, for its own files",
        }
        command = [sys.executable, __file__, "--child", way, case, f"{folder}/programs"]
        for _ in range(2):
            done = subprocess.run(
                command,
                env=environment,
                capture_output=True,
                text=True,
                check=False,
                timeout=TIMEOUT,
            )
            if done.returncode:
                raise RuntimeError((done.stderr.splitlines() or ["no message"])[-1])
    return json.loads(done.stdout.splitlines()[-1])


def first_gradients(failures: Failures, clock: Clock, chosen: list[str]) -> dict[str, Any]:
    results: dict[str, Any] = {}
    rows = []
    for case in chosen:
        if clock.is_over(case):
            continue
        progress(f"{case}, second process")
        made = {way: failures.attempt(f"{way}, {case}", second_process, way, case) for way in WAYS}
        results[case] = {way: found for way, found in made.items() if found}
        rows.append([case, *(f"{found['cpu']:.2f}" if found else "" for found in made.values())])
    print_table("CPU seconds to the first gradient, second process", ["model", *WAYS], rows)
    return results


# --- a call of energy and forces ------------------------------------------------------------------


def calls(folder: str, failures: Failures) -> dict[str, Callable[[torch.Tensor], Any]]:
    """Ways to compute energy and forces, each a function of positions."""
    sys.path.insert(0, str(ROOT / "examples" / "deploy"))
    from potential import Potential, main, with_forces

    main(f"{folder}/forces.pt2")
    model = Potential().requires_grad_(False)
    whole = with_forces(model)
    example = torch.rand(ATOMS, 3, dtype=torch.float64)

    def by_grad(energy: Any) -> Callable[[torch.Tensor], Any]:
        def call(positions: torch.Tensor) -> Any:
            positions = positions.detach().requires_grad_()
            value = energy(positions)
            (gradient,) = torch.autograd.grad(value, positions)
            return value.detach(), -gradient

        return call

    def by_aoti(name: str) -> Callable[[torch.Tensor], Any]:
        from torch.fx.experimental.proxy_tensor import make_fx

        is_open = name == THEIRS
        mode = "symbolic" if is_open else "real"
        graph = make_fx(by_grad(model), tracing_mode=mode, _allow_non_fake_inputs=True)(example)
        shapes = ({0: torch.export.Dim("atoms", min=2, max=64)},) if is_open else None
        program = torch.export.export(graph, (example,), dynamic_shapes=shapes)
        path = f"{folder}/{PACKAGES[name]}"
        torch._inductor.aoti_compile_and_package(program, package_path=path)
        return torch._inductor.aoti_load_package(path)

    def by_jit() -> Callable[[torch.Tensor], Any]:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            return by_grad(torch.jit.trace(model, example))

    found: dict[str, Any] = {
        "eager": by_grad(model),
        "torch.jit": failures.attempt("torch.jit", by_jit),
        **{name: failures.attempt(name, by_aoti, name) for name in (THEIRS, ONE_SIZE)},
        "funcaot.load": funcaot.load(f"{folder}/forces.pt2"),
        "funcaot.compile": funcaot.compile(whole),
    }
    return {name: call for name, call in found.items() if call is not None}


def by_ase(folder: str, package: Any = None) -> Callable[[torch.Tensor], Any]:
    """ASE's own call, which makes a step of dynamics: positions go in, forces come out.

    Args:
        folder: Where the artifact is.
        package: What a calculator as users write it by hand is to run in its place.
    """
    from ase import Atoms

    from funcaot.ase import Calculator

    atoms = Atoms("H" * ATOMS, positions=torch.rand(ATOMS, 3).numpy())
    if package is None:
        atoms.calc = Calculator(f"{folder}/{PACKAGES[OURS]}", outputs=("energy", "forces"))
    else:
        atoms.calc = calculator_by_hand(package)

    def call(positions: torch.Tensor) -> Any:
        atoms.positions = positions.numpy()
        return atoms.get_forces()

    return call


def calculator_by_hand(package: Any) -> Any:
    """What ASE's documentation has users write."""
    from ase.calculators.calculator import Calculator, all_changes

    class ByHand(Calculator):
        implemented_properties = ["energy", "forces"]

        def calculate(
            self, atoms: Any = None, properties: Any = (), system_changes: Any = all_changes
        ) -> None:
            super().calculate(atoms, properties, system_changes)
            energy, forces = package(torch.from_numpy(self.atoms.get_positions()))
            self.results = {"energy": energy.item(), "forces": forces.numpy()}

    return ByHand()


def by_cpp(folder: str, packages: list[str]) -> dict[str, float]:
    """Microseconds per step of the dynamics in C++ with each package, which run in turns."""
    if shutil.which("cmake") is None:
        raise RuntimeError("there is no cmake")
    source, build = ROOT / "examples" / "deploy", f"{folder}/build"
    library = f"-DTORCH={Path(torch.__file__).parent}"
    subprocess.run(["cmake", "-S", source, "-B", build, library], check=True, capture_output=True)
    subprocess.run(["cmake", "--build", build], check=True, capture_output=True)
    times: dict[str, list[float]] = {name: [] for name in packages}
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    for _ in range(RUNS):
        for name in packages:
            run = [
                f"{build}/dynamics",
                f"{folder}/{PACKAGES[name]}",
                str(ATOMS),
                str(STEPS),
                "0.005",
            ]
            done = subprocess.run(
                run, env=environment, check=True, capture_output=True, text=True, timeout=TIMEOUT
            )
            times[name].append(float(done.stdout.split()[-1]))
    return {f"{name}, in C++": min(found) for name, found in times.items()}


def latencies(failures: Failures, *, quick: bool) -> dict[str, float]:
    """Microseconds per call in the fastest round, the ways in turns."""
    torch.set_num_threads(1)
    with tempfile.TemporaryDirectory() as folder:
        ways = calls(folder, failures)
        packages = [name for name in PACKAGES if name == OURS or name in ways]
        for name in packages:
            package = None if name == OURS else ways[name]
            ase = failures.attempt(f"{name}, in ASE", by_ase, folder, package)
            if ase is not None:
                ways[f"{name}, in ASE"] = ase
        torch.manual_seed(0)
        given = [2 * torch.rand(ATOMS, 3, dtype=torch.float64) for _ in range(8)]
        times: dict[str, list[float]] = {name: [] for name in ways}
        for number in range(3 if quick else ROUNDS):
            for name, call in ways.items():
                for positions in given:
                    call(positions)
                began = time.perf_counter()
                for index in range(CALLS):
                    call(given[index % len(given)])
                if number:  # the first one warms up
                    times[name].append((time.perf_counter() - began) / CALLS * 1e6)
        found = {name: min(measured) for name, measured in times.items()}
        found |= failures.attempt("C++", by_cpp, folder, packages) or {}
    rows = [[name, f"{value:.0f}"] for name, value in found.items()]
    print_table("Microseconds per call of energy and forces", ["way", "microseconds"], rows)
    return found


def targets_of(gradients: dict[str, Any], calls: dict[str, float]) -> list[Target]:
    found = [
        Target(f"{case}, first gradient", other, ours["cpu"] / theirs["cpu"], 1.0)
        for case, by in gradients.items()
        for other in WAYS[:1]
        if (ours := by.get(WAYS[2])) and (theirs := by.get(other))
    ]
    for what, ours, theirs in (
        ("energy and forces, a call", "funcaot.load", THEIRS),
        ("energy and forces, a step in C++", f"{OURS}, in C++", f"{THEIRS}, in C++"),
        ("energy and forces, a step in ASE", f"{OURS}, in ASE", f"{THEIRS}, in ASE"),
    ):
        if ours in calls and theirs in calls:
            found.append(Target(what, THEIRS, calls[ours] / calls[theirs], 1.0))
    return found


def main() -> None:
    parser = parser_of(__doc__)
    parser.add_argument("--child", nargs=3, metavar=("WAY", "CASE", "PATH"))
    parser.add_argument("--only", nargs="*", metavar="MODEL", help="first gradients of these")
    options = parser.parse_args()
    if options.child:
        print(json.dumps(child(*options.child)))
        return
    failures = Failures()
    chosen = options.only
    if chosen is None:
        chosen = list(cases())[2:3] if options.quick else list(cases())
    made = {} if options.only else latencies(failures, quick=options.quick)
    gradients = first_gradients(failures, Clock(options.minutes), chosen)
    if options.only is not None:
        print_targets(targets_of(gradients, made))
        return
    content = {
        "environment": environment_of(),
        "calls": made,
        "gradients": gradients,
        "failures": failures.messages,
        "targets": print_targets(targets_of(gradients, made)),
    }
    write_json("deploy", content)


if __name__ == "__main__":
    main()
