"""``python -m funcaot check``."""

import io
import json
import subprocess
import sys
from pathlib import Path

import pytest

from funcaot.testing.command import main

ROOT = Path(__file__).resolve().parents[2]
SOURCE = """
import torch
import funcaot


class Scale(funcaot.Function):
    generate_vmap_rule = True

    @staticmethod
    def forward(x, factor):
        return x * factor

    @staticmethod
    def setup_context(ctx, inputs, output):
        ctx.factor = inputs[1]

    @staticmethod
    def backward(ctx, grad):
        return {gradient}, None


def reference(x, factor):
    return x * factor


def index_only(x, index):
    return x.gather(-1, index)


def of_dictionary(tensors):
    return tensors["x"] * 2


number = 3
doubled = funcaot.compile(lambda x: 2 * x, backend="eager")
"""


@pytest.fixture
def source(tmp_path):
    def write(gradient="grad * ctx.factor"):
        path = tmp_path / "scaling.py"
        path.write_text(SOURCE.format(gradient=gradient))
        return path

    return write


def run(*arguments):
    output = io.StringIO()
    status = main(["check", *map(str, arguments)], output)
    return status, output.getvalue()


INPUTS = ("--inputs", "torch.rand(3), 2.5", "--transforms", "gradient,grad,vmap_of_grad")


def test_status_zero_for_a_correct_function(source):
    status, output = run(f"{source()}:Scale", *INPUTS)
    assert status == 0
    assert "Scale: ok" in output


def test_status_one_for_a_wrong_gradient(source):
    status, output = run(f"{source('-grad * ctx.factor')}:Scale", *INPUTS, "--json")
    assert status == 1
    rows = {row["name"]: row for row in json.loads(output)["rows"]}
    assert rows["gradient"]["status"] == "wrong"


def test_a_reference_and_a_page(source, tmp_path):
    path = source()
    page = tmp_path / "report.html"
    status, _ = run(f"{path}:Scale", *INPUTS, "--ref", f"{path}:reference", "--html", page)
    assert status == 0
    assert "<h1>Scale</h1>" in page.read_text()


@pytest.mark.parametrize(
    ("target", "inputs", "message"),
    [
        ("{path}:Missing", "", "no 'Missing' in it"),
        ("no_such_package.module:Name", "", "can't import"),
        ("{path}", "torch.rand(3), 2.5", "to several Functions"),
        ("{path}:index_only", "", "--inputs"),
        ("{path}:Scale", "torch.rand(", "can't evaluate"),
        ("{path}:Scale", "torch.arange(3), 2.5", "no argument to differentiate"),
        ("{path}:of_dictionary", "{'x': torch.rand(3)}", "puts them into the container"),
        ("{path}:number", "", "can't check 3"),
    ],
)
def test_status_two_says_what_to_do(source, capsys, target, inputs, message):
    options = ["--inputs", inputs] if inputs else []
    status, _ = run(target.format(path=source()), *options)
    assert status == 2
    assert message in capsys.readouterr().err


def test_a_file_that_cannot_be_imported(tmp_path, capsys):
    path = tmp_path / "broken.py"
    path.write_text("raise KeyError('missing')")
    assert run(f"{path}:Name")[0] == 2
    assert "KeyError" in capsys.readouterr().err


def test_a_page_in_no_folder_is_refused_at_once(source, tmp_path, capsys):
    assert run(f"{source()}:Scale", *INPUTS, "--html", tmp_path / "none" / "page.html")[0] == 2
    assert "make the folder" in capsys.readouterr().err


def test_transforms_with_blanks_and_with_typing_errors(source, capsys):
    options = ("--inputs", "torch.rand(3), 2.5", "--transforms")
    assert run(f"{source()}:Scale", *options, "gradient, grad, vmap")[0] == 0
    assert run(f"{source()}:Scale", *options, "grda")[0] == 2
    assert "did you mean 'grad'?" in capsys.readouterr().err


def test_a_wrong_guess_is_pointed_out(source):
    status, output = run(f"{source()}:Scale", "--transforms", "gradient")
    assert status == 1
    assert "if one isn't meant to be a tensor" in " ".join(output.split())


def test_a_compiled_lambda_has_the_name_that_it_was_given(source):
    status, output = run(f"{source()}:doubled", "--transforms", "gradient")
    assert status == 0
    assert "doubled: ok" in output


def test_as_a_module():
    command = [sys.executable, "-m", "funcaot", "check", "torch:sin", "--transforms", "gradient"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert "sin: ok" in done.stdout
