"""The demo runs from start to end, and prints what it promises."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]


def run_demo(*arguments):
    return subprocess.run(
        [sys.executable, "examples/digits.py", *arguments],
        cwd=ROOT,
        env={**os.environ, "PYTHONWARNINGS": "error::UserWarning:funcaot"},
        capture_output=True,
        text=True,
        check=False,
    )


@pytest.mark.parametrize(
    ("backend", "epochs"),
    [("eager", 1), pytest.param("inductor", 30, marks=pytest.mark.slow)],
)
def test_the_demo_trains_twice_and_compares(tmp_path, backend, epochs):
    figure = tmp_path / "digits.png"
    short = ["--no-comparisons"] if backend == "eager" else []
    result = run_demo(
        "--backend", backend, "--epochs", str(epochs), "--figure", str(figure), *short
    )
    assert result.returncode == 0, result.stderr
    assert figure.read_bytes().startswith(b"\x89PNG")
    assert "0 after the first forward, 1 after the first backward" in result.stdout
    if backend == "inductor":
        lines = result.stdout.splitlines()
        (accuracy,) = (line for line in lines if line.startswith("test accuracy"))
        percentages = [float(word.rstrip("%,")) for word in accuracy.split() if "%" in word]
        assert min(percentages) >= 97


@pytest.mark.slow
def test_funcaot_is_right_where_it_is_compared():
    import funcaot
    from examples.comparisons import COMPARISONS

    assert [comparison.verdict(funcaot.compile) for comparison in COMPARISONS] == ["right"] * 3
