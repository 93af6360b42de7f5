"""The benchmarks run, all of them, and their page is made of what they write."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]
# What others import; operator.py runs operator_overhead.
PARTS = {"common.py", "operator_overhead.py"}


def test_make_bench_runs_every_script():
    done = subprocess.run(
        ["make", "-n", "bench"], cwd=ROOT, capture_output=True, text=True, check=True
    )
    words = done.stdout.split()
    for script in (ROOT / "benchmarks").glob("*.py"):
        runs = any(word.strip(";") == f"benchmarks/{script.name}" for word in words)
        assert runs != (script.name in PARTS), script.name


@pytest.mark.slow
def test_results_become_a_page(tmp_path):
    results = tmp_path / "benchmarks"
    environment = {**os.environ, "FUNCAOT_BENCHMARKS": str(results), "PYTHONPATH": str(ROOT)}
    for script in ("operator", "residuals", "page"):
        path = ROOT / "benchmarks" / f"{script}.py"
        subprocess.run([sys.executable, path, "--quick"], env=environment, check=True)
    page = (tmp_path / "benchmarks.md").read_text()
    assert "## What a Function costs" in page
    assert "## What a forward keeps" in page
    for name in ("operator.json", "residuals.json", "operator.svg"):
        assert (results / name).exists()
        assert name in page or name.endswith(".json")
