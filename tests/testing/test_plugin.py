"""The pytest plugin: start-up without torch, selection, reports, seeds."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
USER_FILE = """
import torch
from funcaot.testing import opinfo, parametrize_transforms
from tests.testing.planted_bugs import {function}

SAMPLES = [torch.rand(2, 3, dtype=torch.float64, requires_grad=True),
           torch.rand(2, dtype=torch.float64, requires_grad=True)]

@parametrize_transforms([opinfo({function}, SAMPLES, ref={ref})])
def test_my_function(case):
    case.run()
"""


def run_pytest(path, *arguments):
    # In a process of its own: the plugin may be loaded already, by its entry point, in this one.
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1"}
    command = [sys.executable, "-m", "pytest", "-p", "_funcaot_pytest", "-p", "no:cacheprovider"]
    done = subprocess.run(
        [*command, "--rootdir", str(path), *arguments, str(path)],
        cwd=path,
        env=environment,
        capture_output=True,
        text=True,
        check=False,
    )
    return done.stdout + done.stderr


@pytest.fixture
def user_file(tmp_path):
    def write(function, ref="torch.sin"):
        (tmp_path / "test_mine.py").write_text(USER_FILE.format(function=function, ref=ref))
        return tmp_path

    return write


def test_start_up_does_not_import_torch(tmp_path):
    (tmp_path / "test_plain.py").write_text(
        "import sys\n"
        "def test_plain():\n"
        "    assert '_funcaot_pytest' in sys.modules\n"
        "    assert 'torch' not in sys.modules\n"
        "    assert 'funcaot' not in sys.modules\n"
    )
    assert "1 passed" in run_pytest(tmp_path)


def test_five_lines_yield_the_matrix(user_file):
    output = run_pytest(user_file("Correct"), "-q")
    assert "failed" not in output
    assert "passed" in output


def test_transforms_are_selected(user_file):
    path = user_file("Correct")
    output = run_pytest(path, "-v", "--funcaot-transforms=grad,vmap*", "--funcaot-seed=5")
    assert "funcaot: seed 5, transforms grad,vmap*" in output
    assert "Correct-grad-sample0-float64-cpu" in output
    assert "Correct-vmap_last-sample1-float64-cpu" in output
    assert "-jvp-" not in output
    assert "deselected" in output


def test_the_marker_selects(user_file):
    output = run_pytest(user_file("Correct"), "-q", "-m", "not funcaot")
    assert "deselected" in output
    assert "passed" not in output


def test_a_failure_is_explained(user_file):
    output = run_pytest(user_file("WrongSign"), "-q", "--funcaot-transforms=grad")
    assert "WrongSign under grad, torch.float64 on cpu" in output
    assert "smallest failing sample: Sample(float64[2] grad" in output
    assert "graph:" in output
    assert "def forward(self" in output
    assert "--funcaot-transforms=grad --funcaot-seed=" in output
