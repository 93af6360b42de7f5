"""Signatures survive decorators and ``compile``: what type checkers say of a user's file."""

import json
import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
SOURCE = """
from collections.abc import Callable
from typing import Any

import torch
import funcaot


def energy(x: torch.Tensor, scale: float = 1.0) -> torch.Tensor:
    return scale * x


class Net(torch.nn.Module):
    def predict(self, x: torch.Tensor) -> int:
        return 3


@funcaot.compile(backend="eager")
def double(x: torch.Tensor) -> torch.Tensor:
    return 2 * x


@funcaot.compile
def triple(x: torch.Tensor) -> torch.Tensor:
    return 3 * x


class Spring:
    @funcaot.compile(backend="eager")
    def pull(self, x: torch.Tensor) -> torch.Tensor:
        return x

    @funcaot.compile
    def push(self, x: torch.Tensor) -> torch.Tensor:
        return x


@funcaot.custom_vjp
def cube(x: torch.Tensor) -> torch.Tensor:
    return x**3


@funcaot.custom_jvp
def sine(x: torch.Tensor) -> torch.Tensor:
    return x.sin()


@funcaot.custom_vmap
def batched(x: torch.Tensor) -> torch.Tensor:
    return x


@funcaot.sequential_vmap
def looped(x: torch.Tensor) -> torch.Tensor:
    return x


@funcaot.custom_gradient
def straight(x: torch.Tensor) -> tuple[torch.Tensor, Callable[..., Any]]:
    return x.round(), lambda gradient: gradient


@funcaot.checkpoint
def block(x: torch.Tensor) -> torch.Tensor:
    return x


compiled = funcaot.compile(energy)
good_result: torch.Tensor = compiled(torch.ones(3), scale=2.0)
good_method: int = funcaot.compile(Net()).predict(torch.ones(3))
good_module: Net = funcaot.compile(Net(), backend="eager")
good_decorated: torch.Tensor = double(torch.ones(3))
good_plainly: torch.Tensor = triple(torch.ones(3))
good_bound: torch.Tensor = Spring().pull(torch.ones(3))
good_unbound: torch.Tensor = Spring.push(Spring(), torch.ones(3))
good_nested: torch.Tensor = funcaot.compile(cube)(torch.ones(3))
good_rules: list[torch.Tensor] = [f(torch.ones(3)) for f in (cube, sine, batched, looped, straight)]
good_block: torch.Tensor = block(torch.ones(3))
good_count: int = funcaot.report(compiled).graphs_compiled + compiled.save("file").programs
compiled("x")  # wrong
compiled(torch.ones(3), scaling=2.0)  # wrong
bad_result: str = double(torch.ones(3))  # wrong
bad_module: str = funcaot.compile(Net())  # wrong
double(3)  # wrong
triple(3)  # wrong
Spring().pull(3)  # wrong
bad_bound: str = Spring().push(torch.ones(3))  # wrong
cube(3)  # wrong
bad_cube: str = cube(torch.ones(3))  # wrong
sine(3)  # wrong
batched(3)  # wrong
looped(3)  # wrong
straight(3)  # wrong
bad_straight: str = straight(torch.ones(3))  # wrong
block(3)  # wrong
bad_count: str = funcaot.report(compiled).graphs_compiled  # wrong
funcaot.compile(3)  # wrong
funcaot.compile(energy, dynamic="yes")  # wrong
"""
NAMED = r'funcaot.compile(\1, backend="eager")'
WRONG = {number for number, line in enumerate(SOURCE.splitlines(), 1) if "# wrong" in line}


def said(command, folder):
    (folder / "user.py").write_text(SOURCE)
    command = [sys.executable, "-m", *command]
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True, check=False)
    assert done.returncode == 1, done.stderr  # Something is wrong; 2 is a failure of its own.
    return done.stdout


@pytest.mark.slow
def test_pyright_sees_through_compile(tmp_path):
    pytest.importorskip("pyright")
    # The project's own settings are not a user's.
    settings = {"extraPaths": [str(ROOT)], "reportPrivateImportUsage": False}
    (tmp_path / "pyrightconfig.json").write_text(json.dumps(settings))
    command = ["pyright", "--pythonpath", sys.executable, "--outputjson", "-p", str(tmp_path)]
    found = json.loads(said(command, tmp_path))["generalDiagnostics"]
    lines = {entry["range"]["start"]["line"] + 1 for entry in found if entry["severity"] == "error"}
    assert lines == WRONG


@pytest.mark.slow
def test_mypy_sees_through_compile(tmp_path, monkeypatch):
    pytest.importorskip("mypy")
    # As if the package were installed: its own lines aren't looked at.
    monkeypatch.setenv("MYPYPATH", str(ROOT))
    command = ["mypy", "--strict", "--follow-imports=silent", "--cache-dir", str(tmp_path / "kept")]
    printed = said([*command, "--config-file", "", "user.py"], tmp_path)
    lines = {int(line) for line in re.findall(r"^user\.py:(\d+): error", printed, re.MULTILINE)}
    assert lines == WRONG, printed


def test_what_the_checkers_are_told_is_right(tmp_path):
    """The good lines run."""
    good = "\n".join(line for line in SOURCE.splitlines() if "# wrong" not in line)
    rules = (
        "cube.defvjp(lambda x: (x**3, x), lambda x, gradient: (gradient,))\n"
        "sine.defjvp(lambda primals, tangents: (primals[0].sin(), tangents[0]))\n"
        "batched.def_vmap(lambda size, batched, x: (x, True))\n"
    )
    good = good.replace('save("file")', f"save({str(tmp_path / 'file')!r})")
    # Compiled as it is here, Inductor would take its time.
    namespace = {"__name__": "user"}
    good = good.replace("@funcaot.compile\n", '@funcaot.compile(backend="eager")\n')
    good = re.sub(r"funcaot\.compile\((energy|Net\(\)|cube)\)", NAMED, good)
    place = good.index("compiled = ")
    exec(good[:place] + rules + good[place:], namespace)
    assert namespace["good_count"] >= 1
