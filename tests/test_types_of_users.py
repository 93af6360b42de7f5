"""Signatures survive ``compile``: what a type checker says of a user's file."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]
SOURCE = """
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


compiled = funcaot.compile(energy)
good_result: torch.Tensor = compiled(torch.ones(3), scale=2.0)
good_method: int = funcaot.compile(Net()).predict(torch.ones(3))
good_decorated: torch.Tensor = double(torch.ones(3))
compiled("x")  # wrong
compiled(torch.ones(3), scaling=2.0)  # wrong
bad_result: str = double(torch.ones(3))  # wrong
double(3)  # wrong
"""


@pytest.mark.slow
def test_a_type_checker_sees_through_compile(tmp_path):
    pytest.importorskip("pyright")
    file = tmp_path / "user.py"
    file.write_text(SOURCE)
    # The project's own settings are not a user's.
    settings = {"extraPaths": [str(ROOT)], "reportPrivateImportUsage": False}
    (tmp_path / "pyrightconfig.json").write_text(json.dumps(settings))
    command = [sys.executable, "-m", "pyright", "--pythonpath", sys.executable, "--outputjson"]
    done = subprocess.run(
        [*command, "-p", str(tmp_path)], cwd=tmp_path, capture_output=True, text=True, check=False
    )
    found = json.loads(done.stdout)["generalDiagnostics"]
    lines = {entry["range"]["start"]["line"] for entry in found if entry["severity"] == "error"}
    wrong = {number for number, line in enumerate(SOURCE.splitlines()) if "# wrong" in line}
    assert lines == wrong
