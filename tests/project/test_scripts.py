"""The project's own checks find what they are for; the set-up says in one line what is missing."""

import subprocess
import sys
import types
from importlib.metadata import version
from pathlib import Path

import pytest

from scripts import check_lengths, check_torch_imports, draw_rooms

ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture
def write(tmp_path):
    def write_source(text):
        path = tmp_path / "sample.py"
        path.write_text(text)
        return path

    return write_source


def test_long_files_and_functions_are_reported(write):
    body = "\n".join(["    x = 1"] * 61)
    path = write(f"def f():\n{body}\n\n" + "y = 1\n" * 450)
    file_line, function_line = check_lengths.offenders(path)
    assert "file of 513 lines" in file_line
    assert "f: 62 lines" in function_line


def test_a_docstring_does_not_count(write):
    docstring = '    """Title.\n' + "    text\n" * 80 + '    """\n'
    assert list(check_lengths.offenders(write(f"def f():\n{docstring}    return 1\n"))) == []


@pytest.mark.parametrize(
    ("signature", "expected"),
    [
        ("a, b, c, d, e, f", []),
        ("self, a, b, c, d, e, f", []),
        ("a, b, c, d, e, f, g", ["7 parameters"]),
        ("a, b, /, c, d, *rest, e, f, g, **more", ["7 parameters"]),
    ],
)
def test_parameters_are_counted(write, signature, expected):
    found = list(check_lengths.offenders(write(f"def f({signature}):\n    pass\n")))
    assert len(found) == len(expected)
    assert all(part in line for part, line in zip(expected, found, strict=True))


@pytest.mark.parametrize(("count", "full"), [(16, False), (17, True)])
def test_folders_with_too_many_files_are_found(count, full):
    files = [Path("room", f"f{i}.py") for i in range(count)]
    inside = [Path("room", "inner", f"g{i}.py") for i in range(9)]
    assert len(list(check_lengths.full_folders(files + inside))) == full


@pytest.mark.parametrize(
    ("source", "name"),
    [
        ("import torch._C", "torch._C"),
        ("from torch._functorch import pyfunctorch", "torch._functorch.pyfunctorch"),
        ("from torch import _C", "torch._C"),
        ("from torch.fx.experimental import proxy_tensor", "torch.fx.experimental.proxy_tensor"),
        ("from torch.testing._internal import opinfo", "torch.testing._internal.opinfo"),
        ("import torch\ntorch._C._functorch.peek()", "torch._C._functorch.peek"),
    ],
)
def test_private_torch_names_are_reported(write, source, name):
    (line,) = check_torch_imports.offenders(write(source))
    assert name in line


@pytest.mark.parametrize(
    "source",
    [
        "import torch\ntorch.func.grad(f)",
        "from torch.utils.data import DataLoader",
        "import torch\ntorch.__version__",
        "from funcaot._torch import functorch",
        "tensor._private",
    ],
)
def test_public_names_are_not_reported(write, source):
    assert list(check_torch_imports.offenders(write(source))) == []


def run_script(name, **environment):
    return subprocess.run(
        ["/bin/sh", str(ROOT / "scripts" / name)],
        env={"PATH": "/usr/bin:/bin", **environment},
        capture_output=True,
        text=True,
        check=False,
    )


def test_a_missing_compiler_is_one_line():
    result = run_script("check_compiler.sh", CXX="no-such-compiler")
    assert result.returncode == 1
    assert result.stdout == ""
    assert len(result.stderr.splitlines()) == 1
    assert "'no-such-compiler' was not found" in result.stderr


def test_a_wrong_python_is_one_line(tmp_path):
    old = tmp_path / "old-python"
    old.write_text("#!/bin/sh\nexit 10\n")
    old.chmod(0o755)
    result = run_script("find_python.sh", PYTHON=str(old))
    assert result.returncode == 1
    assert len(result.stderr.splitlines()) == 1
    assert "Python 3.11, 3.12 or 3.13; found none at PYTHON=" in result.stderr


def test_a_right_python_is_found():
    result = run_script("find_python.sh", PYTHON=sys.executable)
    assert result.returncode == 0, result.stderr
    assert result.stdout.strip() == sys.executable


def test_the_picture_shows_the_rooms_that_there_are():
    assert draw_rooms.draw(ROOT) == (ROOT / draw_rooms.PICTURE).read_text(), (
        "run python scripts/draw_rooms.py"
    )


def test_a_test_of_no_library_has_a_row_without_a_version():
    """The table of other people's models ended with an internal error of pytest there."""
    path = ROOT / "tests" / "third_party" / "conftest.py"
    table = types.ModuleType("third_party_table")
    exec(compile(path.read_text(), str(path), "exec"), vars(table))
    assert table.library_of("an_inner_loop", "sgd") == ("", "")
    assert table.library_of("all_functions", "") == ("", "")
    assert table.library_of("pytest", "")[0] == "pytest"
    assert table.library_of("layers", "torch with a case") == ("torch", version("torch"))
