"""``python -m funcaot check`` for several targets, its documents, and ``record``."""

import ast
import io
import json
import re
import sys
from xml.etree import ElementTree

import pytest
import torch

from funcaot.testing.command import main

GOOD = """
import torch
import funcaot


class Double(funcaot.Function):
    generate_vmap_rule = True

    @staticmethod
    def forward(x):
        return 2 * x

    @staticmethod
    def setup_context(ctx, inputs, output):
        pass

    @staticmethod
    def backward(ctx, grad):
        return 2 * grad


class Gather(torch.autograd.Function):
    @staticmethod
    def forward(x, index):
        return x.gather(-1, index)

    @staticmethod
    def setup_context(ctx, inputs, output):
        ctx.save_for_backward(*inputs)

    @staticmethod
    def backward(ctx, grad):
        x, index = ctx.saved_tensors
        return torch.zeros_like(x).scatter_add(-1, index, grad), None


@funcaot.custom_vjp
def triple(x):
    return 3 * x


triple.defvjp(lambda x: (3 * x, None), lambda kept, grad: (3 * grad,))
"""
BAD = """
import torch


class Halve(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        return x / 2

    @staticmethod
    def backward(ctx, grad):
        # 100% wrong, and
        return grad / 3
"""
SCRIPT = """
import sys
import torch
from layers.good import Gather, Double

class Local(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        return x * 1

    @staticmethod
    def backward(ctx, grad):
        return grad.clone()

x = torch.rand(4, 3, requires_grad=True)
for _ in range(3):
    Gather.apply(x, torch.tensor([[0, 2]] * 4)).sum().backward()
Gather.apply(x[:2], torch.tensor([[1], [0]]))
Double.apply(Local.apply(x))
torch.func.vmap(Double.apply)(x)
sys.exit(int(sys.argv[1]))
"""
ROWS = ("--transforms", "gradient,grad")


@pytest.fixture
def package(tmp_path, monkeypatch):
    folder = tmp_path / "layers"
    (folder / "deep").mkdir(parents=True)
    for name, text in (
        ("__init__.py", ""),
        ("good.py", GOOD),
        ("deep/__init__.py", ""),
        ("deep/bad.py", BAD),
        ("deep/broken.py", "raise OSError('no such device')"),
        ("__main__.py", "raise AssertionError('a program was run')"),
    ):
        (folder / name).write_text(text)
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.chdir(tmp_path)
    yield folder
    for name in [name for name in sys.modules if name.split(".")[0] == "layers"]:
        del sys.modules[name]


def run(*arguments):
    output = io.StringIO()
    status = main([*map(str, arguments)], output)
    return status, output.getvalue()


def test_a_module_is_checked_whole(package):
    status, output = run("check", "layers.good", *ROWS)
    assert status == 0
    assert "layers.good:Double: ok" in output
    assert "layers.good:triple: ok" in output
    assert "layers.good:Gather: not checked" in output
    assert "2 Function(s): 2 ok, 0 FAILED, 1 not checked" in output


def test_a_package_with_everything_below_it(package, tmp_path):
    status, output = run("check", "layers", "--all", *ROWS, "--json")
    assert status == 1
    document = json.loads(output)
    verdicts = {result["name"]: result["ok"] for result in document["results"]}
    assert verdicts == {
        "layers.deep.bad:Halve": False,
        "layers.good:Double": True,
        "layers.good:triple": True,
    }
    reasons = {entry["name"]: entry["reason"] for entry in document["skipped"]}
    assert "no such device" in reasons["layers.deep.broken"]


def test_several_targets_and_files(package):
    status, output = run("check", "layers.good:Double", package / "deep" / "bad.py", *ROWS)
    assert status == 1
    assert "layers.good:Double: ok" in output
    assert "bad:Halve: FAILED" in output


def test_nothing_to_check_says_so(package, capsys):
    assert run("check", "layers")[0] == 2
    assert "add --all" in capsys.readouterr().err


def test_junit(package, tmp_path):
    file = tmp_path / "results.xml"
    assert run("check", "layers", "--all", *ROWS, "--junit", file)[0] == 1
    suites = {suite.get("name"): suite for suite in ElementTree.parse(file).getroot()}
    halve = suites["layers.deep.bad:Halve"]
    assert (halve.get("tests"), halve.get("failures"), halve.get("errors")) == ("2", "1", "0")
    (case,) = [case for case in halve if case.find("failure") is not None]
    assert case.get("name") == "gradient"
    assert "measured" in case.find("failure").text
    assert suites["layers.good:Gather"].get("skipped") == "1"


def line_of(path, name):
    tree = ast.parse(path.read_text())
    functions = [node for node in ast.walk(tree) if isinstance(node, ast.FunctionDef)]
    (found,) = [node for node in functions if node.name == name]
    return min(found.lineno, *(decorator.lineno for decorator in found.decorator_list))


def test_annotations_for_github(package, monkeypatch):
    monkeypatch.setenv("GITHUB_WORKSPACE", str(package.parent))
    _, output = run("check", "layers", "--all", *ROWS, "--github")
    (line,) = re.findall("^::error .*", output, re.MULTILINE)
    place = line_of(package / "deep" / "bad.py", "backward")
    assert line.startswith(f"::error file=layers/deep/bad.py,line={place},title=layers.deep.bad%3A")
    assert ", measured " in line
    assert re.search("^::notice title=layers.deep.broken::not checked", output, re.MULTILINE)


def test_warnings_fail_where_they_should(tmp_path):
    file = tmp_path / "conjugate.py"
    file.write_text(BAD.replace("return grad / 3", "return grad / 2 * (1 + 3e-6)"))
    assert run("check", f"{file}:Halve", *ROWS)[0] == 0
    assert run("check", f"{file}:Halve", *ROWS, "--strict")[0] == 1


def test_record_and_check_on_what_was_seen(package, tmp_path):
    script, samples = tmp_path / "train.py", tmp_path / "seen.pt"
    script.write_text(SCRIPT)
    status, output = run("record", "--output", samples, script, "3")
    assert status == 3  # the script's own
    assert "layers.good:Gather: 2 kind(s) of calls" in output
    assert "train:Local: 1 kind(s) of calls" in output
    # Plain torch reads it: values and flags as they were.
    calls = torch.load(samples, weights_only=True)["calls"]["layers.good:Gather"]
    assert [tuple(x.shape) for x, _ in calls] == [(2, 3), (4, 3)]
    assert all(x.requires_grad for x, _ in calls)
    status, output = run("check", "layers.good", "--all", *ROWS, "--samples", samples)
    assert status == 0
    assert "layers.good:Gather: ok" in output


def test_recording_leaves_torch_as_it_was(package, tmp_path):
    before = torch.autograd.Function.__dict__["apply"]
    script = tmp_path / "train.py"
    script.write_text("raise KeyError('in the script')")
    with pytest.raises(KeyError, match="in the script"):
        run("record", "--output", tmp_path / "seen.pt", script)
    assert torch.autograd.Function.__dict__["apply"] is before
    assert run("record", tmp_path / "none.py")[0] == 2


def test_samples_that_cannot_be_read(package, tmp_path, capsys):
    (tmp_path / "seen.pt").write_text("nothing")
    assert run("check", "layers.good", "--samples", tmp_path / "seen.pt")[0] == 2
    assert "funcaot record" in capsys.readouterr().err
