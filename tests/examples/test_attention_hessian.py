"""The example of attention's Hessian, against dense linear algebra and the MATH kernel."""

import json
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from torch.nn.attention import SDPBackend, sdpa_kernel

import funcaot
from examples import attention_hessian as example

ROOT = Path(__file__).resolve().parents[2]


def test_lanczos_finds_the_largest_eigenvalue():
    generator = torch.Generator().manual_seed(0)
    half = torch.randn(30, 30, generator=generator, dtype=torch.float64)
    matrix = half + half.T
    start = torch.randn(30, generator=generator, dtype=torch.float64)
    wanted = torch.linalg.eigvalsh(matrix)[-1].item()
    assert example.top_eigenvalue(lambda v: matrix @ v, start, 30) == pytest.approx(wanted)
    # A start that is an eigenvector ends it after one step.
    assert example.top_eigenvalue(lambda v: 3 * v, start, 5) == pytest.approx(3)


def test_products_of_the_hessian_are_those_of_math():
    torch.manual_seed(0)
    model, text = example.ByteModel(9), next(example.texts(9, 2))
    parameters = list(model.parameters())
    vector = torch.randn(sum(p.numel() for p in parameters))
    with sdpa_kernel(SDPBackend.MATH):
        wanted = example.hessian_product(model(text), parameters)(vector)
    compiled = funcaot.compile(model, backend="eager")
    found = example.hessian_product(compiled(text), parameters)(vector)
    torch.testing.assert_close(found, wanted, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("task", example.TASKS)
def test_each_way_computes_the_same(task):
    found = []
    for way in example.WAYS:
        run = example.TASKS[task](way, 17, "eager")
        with example.surroundings(way):
            found.append(run())
    for other in found[1:]:
        torch.testing.assert_close(other, found[0], rtol=1e-4, atol=1e-5)


@pytest.mark.long
def test_it_runs_and_draws(tmp_path):
    figure = tmp_path / "curve.png"
    told = ["--steps=10", "--tokens=256", "--backend=eager", f"--figure={figure}"]
    command = [sys.executable, "examples/attention_hessian.py", *told]
    result = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert result.returncode == 0, result.stderr
    assert figure.read_bytes().startswith(b"\x89PNG")
    assert result.stdout.count("sharpness") == 3
    assert result.stdout.count("MB more") == 6


@pytest.mark.slow
@pytest.mark.skipif(not Path("/proc/self/clear_refs").exists(), reason="memory is read of Linux")
def test_memory_grows_with_the_length():
    """At 2,048 tokens MATH holds matrices of 32 MB; the blocks hold none."""
    cost = {}
    for way in example.WAYS[:2]:
        told = ["--measure=Hessian times vector", f"--way={way}", "--tokens=2048"]
        command = [sys.executable, "examples/attention_hessian.py", *told, "--backend=eager"]
        result = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True)
        cost[way] = json.loads(result.stdout.splitlines()[-1])
    math, fused = (cost[way] for way in example.WAYS[:2])
    assert fused["megabytes"] < 0.25 * math["megabytes"]
    assert fused["norm"] == pytest.approx(math["norm"], rel=1e-3)
