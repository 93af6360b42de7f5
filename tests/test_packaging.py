"""What a user installs: the metadata, the type marker, and nothing that isn't the package."""

import importlib.metadata
import subprocess
import sys
import tomllib
import zipfile
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]


@pytest.fixture(scope="module")
def project():
    return tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]


def test_the_torch_range_is_the_supported_one(project):
    assert "torch>=2.13,<2.16" in project["dependencies"]
    assert project["requires-python"] == ">=3.11"
    assert project["license"] == "BSD-3-Clause"


def test_the_constraints_pin_torch_once():
    lines = (ROOT / "constraints.txt").read_text().splitlines()
    assert [line for line in lines if line.startswith("torch==")] == ["torch==2.13.0"]


def test_the_installed_version_is_the_projects(project):
    assert importlib.metadata.version("funcaot") == project["version"]


@pytest.mark.slow
def test_the_wheel_holds_the_package_and_nothing_else(tmp_path):
    build = [sys.executable, "-m", "hatchling", "build", "-t", "wheel", "-d", str(tmp_path)]
    subprocess.run(build, cwd=ROOT, check=True, capture_output=True)
    (wheel,) = tmp_path.glob("*.whl")
    names = zipfile.ZipFile(wheel).namelist()
    assert "funcaot/py.typed" in names
    assert any(name.endswith("licenses/LICENSE") for name in names)
    tops = {name.split("/")[0].split("-")[0] for name in names}
    assert tops == {"funcaot", "_funcaot_pytest"}
