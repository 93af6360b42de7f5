"""The diffs of the page for contributors apply to the code, and their tests pass."""

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
DIFFS = re.findall(r"^```diff\n(.*?)^```$", (ROOT / "docs/changing.md").read_text(), re.S | re.M)
LIMIT_S = 300


def test_each_is_short():
    assert len(DIFFS) == 4
    for diff in DIFFS:
        changed = [line for line in diff.splitlines() if re.match(r"[+-](?![+-]{2} )", line)]
        assert 0 < len(changed) <= 40


@pytest.mark.parametrize("diff", DIFFS, ids=range(len(DIFFS)))
def test_each_applies(diff):
    command = ["git", "apply", "--check", "-"]
    done = subprocess.run(command, input=diff, text=True, cwd=ROOT, capture_output=True)
    assert done.returncode == 0, done.stderr


@pytest.mark.slow
def test_all_of_them_apply_and_pass(tmp_path):
    for folder in ("funcaot", "tests/_torch", "tests/aot/signature", "tests/aot/effects"):
        ignored = shutil.ignore_patterns("__pycache__")
        shutil.copytree(ROOT / folder, tmp_path / folder, ignore=ignored)
    shutil.copy(ROOT / "pyproject.toml", tmp_path)
    added = []
    for diff in DIFFS:
        command = ["git", "apply", "--whitespace=nowarn", "-"]
        subprocess.run(command, input=diff, text=True, cwd=tmp_path, check=True)
        added += re.findall(r"^\+\+\+ b/(tests/.*)$", diff, re.M)
    assert len(added) == 4
    environment = {**os.environ, "PYTHONPATH": str(tmp_path)}
    tests = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", *added]
    done = subprocess.run(
        tests, cwd=tmp_path, env=environment, capture_output=True, text=True, timeout=LIMIT_S
    )
    assert done.returncode == 0, done.stdout[-3000:]
