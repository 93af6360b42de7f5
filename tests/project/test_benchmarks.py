"""The benchmarks run, all of them, and their page is made of what they write."""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
# What others import; operator.py runs operator_overhead.
PARTS = {"choosing_jax", "common", "figures", "in_turns", "models", "operator_overhead"}


def test_make_bench_runs_every_script():
    (line,) = re.findall(r"^BENCHMARKS := (.*)$", (ROOT / "Makefile").read_text(), re.MULTILINE)
    scripts = {path.stem for path in (ROOT / "benchmarks").glob("*.py")}
    assert set(line.split()) == scripts - PARTS
    assert line.endswith(" page")


@pytest.mark.long
@pytest.mark.slow
def test_results_become_a_page(tmp_path):
    results = tmp_path / "benchmarks"
    environment = {**os.environ, "FUNCAOT_BENCHMARKS": str(results), "PYTHONPATH": str(ROOT)}
    for script in ("operator", "residuals", "workloads", "page"):
        path = ROOT / "benchmarks" / f"{script}.py"
        threads = ["--threads", "1"] if script == "workloads" else []
        command = [sys.executable, path, "--quick", *threads]
        subprocess.run(command, env=environment, check=True)
    page = (tmp_path / "benchmarks.md").read_text()
    assert "## What a Function costs" in page
    assert "## What a forward keeps" in page
    assert "funcaot: whole step" in page
    assert "aims" in page
    assert page.index("![") < page.index("\n| "), "figures first"
    figures = {path.name for path in results.glob("*.svg")}
    assert any(name.startswith("workloads-") for name in figures)
    for name in ("operator.json", "residuals.json", *figures):
        assert (results / name).exists()
        assert name in page or name.endswith(".json")
