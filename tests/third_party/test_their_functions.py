"""``python -m funcaot check ... --all`` over Functions of libraries, by recorded calls."""

import subprocess
import sys

SCRIPT = """
import entmax
import torch
from norse.torch.functional.superspike import super_fn

x = torch.randn(4, 5, dtype=torch.float64, requires_grad=True)
for activation in (entmax.entmax15, entmax.sparsemax):
    activation(x, dim=-1).square().sum().backward()
super_fn(x, 100.0).sum().backward()
"""
FOUND = ("Entmax15Function", "SparsemaxFunction", "SuperSpike")


def run(folder, *arguments):
    command = [sys.executable, "-m", "funcaot", *arguments]
    return subprocess.run(command, cwd=folder, capture_output=True, text=True, check=False)


def test_all_functions_by_recorded_calls(tmp_path):
    (tmp_path / "use.py").write_text(SCRIPT)
    recorded = run(tmp_path, "record", "use.py")
    assert recorded.returncode == 0, recorded.stderr
    assert all(name in recorded.stdout for name in FOUND)
    modules = ("entmax.activations", "norse.torch.functional.superspike")
    options = ("--samples", "funcaot-samples.pt", "--transforms", "grad,compile")
    checked = run(tmp_path, "check", *modules, "--all", *options, "--backend", "none")
    assert "Traceback" not in checked.stdout + checked.stderr
    assert checked.returncode in (0, 1)  # A surrogate gradient isn't the derivative.
    for name in FOUND:
        assert f"{name}: " in checked.stdout
