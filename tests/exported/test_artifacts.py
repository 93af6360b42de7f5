"""An artifact of energy and forces, loaded: values, sizes, layouts, and inputs that don't fit."""

import hashlib
import io
import json
import subprocess
import sys
import threading
import zipfile
from pathlib import Path

import pytest
import torch
from torch import nn

import funcaot
from funcaot.errors import ArgumentError, ArtifactError, UnsupportedError
from tests.exported.potentials import ATOMS, ForceField, positions, with_forces

FIELD = ForceField()
EAGER = with_forces(FIELD)


@pytest.fixture(scope="module")
def path(tmp_path_factory):
    target = tmp_path_factory.mktemp("artifact") / "forces.pt2"
    return funcaot.export(EAGER, (positions(5),), path=target, dynamic_shapes=({0: ATOMS},))


@pytest.fixture(scope="module")
def forces(path):
    return funcaot.load(path)


def agree(got, want):
    assert list(got) == list(want)
    for name, value in want.items():
        torch.testing.assert_close(got[name], value, rtol=1e-10, atol=1e-10, check_stride=True)


def test_one_artifact_serves_2_to_64_atoms(forces):
    for atoms in range(2, 65):
        agree(forces(positions(atoms)), EAGER(positions(atoms)))


def test_results_are_new_and_dont_require_grad(forces):
    first, second = forces(positions(5)), forces(positions(5))
    first["forces"].zero_()
    agree(second, EAGER(positions(5)))
    assert not second["energy"].requires_grad


def test_an_input_may_lie_in_memory_in_any_way(forces):
    given = positions(8)
    agree(forces(given.t().contiguous().t()), EAGER(given))
    agree(forces(torch.stack([given, given], 1)[:, 0]), EAGER(given))
    agree(forces(given[:1].expand(4, 3) + positions(4)), EAGER(given[:1] + positions(4)))


def test_autocast_around_a_call_changes_nothing(forces):
    with torch.autocast("cpu", dtype=torch.bfloat16):
        agree(forces(positions(5)), EAGER(positions(5)))


def test_calls_come_from_several_threads(forces):
    found = {}

    def call(atoms):
        found[atoms] = forces(positions(atoms))

    threads = [threading.Thread(target=call, args=(atoms,)) for atoms in range(2, 10)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    for atoms, result in found.items():
        agree(result, EAGER(positions(atoms)))


@pytest.mark.parametrize(
    ("call", "words"),
    [
        (lambda f: f(positions(65)), "atoms from 2 to 64"),
        (lambda f: f(positions(1)), "atoms from 2 to 64"),
        (lambda f: f(positions(5, torch.float32)), r"float64\[atoms, 3\].\nGot: float32\[5, 3\]"),
        (lambda f: f(torch.rand(5, 4, dtype=torch.float64)), "size 3"),
        (lambda f: f(torch.rand(5, dtype=torch.float64)), "as many dimensions"),
        (lambda f: f(torch.empty(5, 3, dtype=torch.float64, device="meta")), "on meta"),
        (lambda f: f(positions(5).to_sparse()), "sparse"),
        (lambda f: f([[1.0, 2.0, 3.0]]), "list"),
        (lambda f: f(None), "NoneType"),
        (lambda f: f(), "a tuple of length 1"),
        (lambda f: f(positions(5), positions(5)), "a tuple of length 2"),
        (lambda f: f(x=positions(5)), "a tuple of length 1"),
        (lambda f: f(positions(5), cell=None), "keys"),
        (lambda f: f(positions(5), parameters={}), "has its own inside"),
    ],
)
def test_inputs_that_dont_fit_are_refused(forces, call, words):
    with pytest.raises(ArgumentError, match=words) as caught:
        call(forces)
    assert "Instead:" in str(caught.value)


def test_a_derivative_of_an_artifact_is_refused(forces):
    given = positions(5).requires_grad_()
    with pytest.raises(UnsupportedError, match="requires grad"):
        forces(given)
    wanted = EAGER(given)
    for quiet in (torch.no_grad, torch.inference_mode):
        with quiet():
            agree(forces(given), wanted)


@pytest.mark.parametrize(
    "transformed",
    [
        lambda f: torch.func.vmap(lambda x: f(x)["energy"])(torch.stack([positions(5)] * 2)),
        lambda f: torch.func.grad(lambda x: f(x)["energy"])(positions(5)),
        lambda f: torch.func.jvp(lambda x: f(x)["energy"], (positions(5),), (positions(5),)),
        lambda f: funcaot.compile(f, backend="eager")(positions(5)),
    ],
    ids=["vmap", "grad", "jvp", "compile"],
)
def test_an_artifact_under_a_transform_is_refused(forces, transformed):
    with pytest.raises(UnsupportedError, match=r"under a transform|requires grad"):
        transformed(forces)


FRESH = """
import json, sys, time
import torch
before = set(sys.modules)
start = time.process_time()
import funcaot
forces = funcaot.load(sys.argv[1])
found = forces(torch.ones(3, 3, dtype=torch.float64))
seconds = time.process_time() - start
new = sorted(set(sys.modules) - before)
print(json.dumps([seconds, new, found["energy"].item()]))
"""


def test_a_fresh_process_imports_no_compiler_and_starts_at_once(path):
    run = [sys.executable, "-c", FRESH, path]
    done = subprocess.run(run, capture_output=True, text=True, check=True)
    seconds, new, energy = json.loads(done.stdout)
    heavy = ("torch._inductor", "torch._dynamo", "sympy", "torch.fx", "funcaot.aot", "funcaot.api")
    assert [name for name in new if name.startswith(heavy)] == []
    assert seconds < 0.5
    expected = EAGER(torch.ones(3, 3, dtype=torch.float64))["energy"].item()
    assert energy == pytest.approx(expected, abs=1e-10)


def test_what_an_artifact_says_of_itself(forces):
    signature = forces.signature
    assert signature.dims == {"atoms": (2, 64)}
    assert signature.torch == torch.__version__
    assert signature.tensors[0].shape == ("atoms", 3)
    assert repr(forces) == "<funcaot artifact energy_and_forces: args[0] float64[atoms, 3]>"


def test_torch_itself_can_load_the_package(path):
    from torch._inductor import aoti_load_package

    energy, gradient = aoti_load_package(path)(positions(6))
    wanted = EAGER(positions(6))
    torch.testing.assert_close(energy, wanted["energy"], rtol=1e-10, atol=1e-10)
    torch.testing.assert_close(gradient, wanted["forces"], rtol=1e-10, atol=1e-10)


def test_an_artifact_of_another_torch_or_machine_is_refused(path, tmp_path):
    for change, words in (
        ({"torch": "2.9.1"}, "another version of torch"),
        ({"version": 99}, "another version of funcaot"),
        ({"format": "other"}, "isn't an artifact"),
        ({"hardware": {"machine": "vax", "system": "Linux", "flags": []}}, "another machine"),
        ({"made": "nothing"}, "incomplete"),
    ):
        with pytest.raises(ArtifactError, match=words):
            funcaot.load(with_signature(path, tmp_path / "changed.pt2", change))


def test_hardware_that_lacks_instructions_is_named(path, tmp_path):
    own = funcaot.load(path).signature.hardware
    change = {"hardware": {**own, "flags": [*own["flags"], "avx9000"]}}
    with pytest.raises(ArtifactError, match="avx9000"):
        funcaot.load(with_signature(path, tmp_path / "changed.pt2", change))


def test_a_signature_can_ask_for_views_only(path, tmp_path):
    step = {"op": "zero_", "overload": "default", "args": [], "kwargs": {}, "item": None}
    change = {"made": [{"start": ["output", 0], "steps": [step]}] * 2}
    with pytest.raises(ArtifactError, match="isn't a view"):
        funcaot.load(with_signature(path, tmp_path / "changed.pt2", change))


def with_signature(path, target, change):
    """A copy of an artifact whose signature says something else."""
    package = io.BytesIO()
    with zipfile.ZipFile(path) as old, zipfile.ZipFile(package, "w") as new:
        new.comment = bytes(64)
        for name in old.namelist():
            content = old.read(name)
            if name.endswith("funcaot.json"):
                content = json.dumps({**json.loads(content), **change})
            new.writestr(name, content)
    content = package.getvalue()[:-64]
    target.write_bytes(content + hashlib.sha256(content).hexdigest().encode())
    return target


def test_a_file_that_is_no_artifact_is_refused(path, tmp_path):
    whole = Path(path).read_bytes()
    for name, content in (
        ("empty", b""),
        ("text", b"hello"),
        ("half", whole[: len(whole) // 2]),
        ("pickle", b"\x80\x04cos\nsystem\n(S'touch /tmp/never'\ntR."),
    ):
        target = tmp_path / f"{name}.pt2"
        target.write_bytes(content)
        with pytest.raises(ArtifactError, match="isn't an artifact"):
            funcaot.load(target)
    with pytest.raises(ArtifactError, match="can't be read: No such file"):
        funcaot.load(tmp_path / "missing.pt2")
    with pytest.raises(ArtifactError, match="can't be read: Is a directory"):
        funcaot.load(tmp_path)
    torch.save({"a": torch.ones(3)}, tmp_path / "saved.pt2")
    with pytest.raises(ArtifactError, match="no signature"):
        funcaot.load(tmp_path / "saved.pt2")


def test_exporting_again_replaces_the_file_and_not_what_was_loaded(tmp_path):
    target = tmp_path / "sine.pt2"
    funcaot.export(torch.sin, (torch.ones(3),), path=target)
    first = funcaot.load(target)
    funcaot.export(lambda x: nn.functional.relu(x) * 2, (torch.ones(4),), path=target)
    torch.testing.assert_close(first(torch.ones(3)), torch.ones(3).sin())
    torch.testing.assert_close(funcaot.load(target)(torch.ones(4)), 2 * torch.ones(4))
    assert [each.name for each in tmp_path.iterdir()] == ["sine.pt2"]


@pytest.mark.slow
def test_gradients_of_a_linear_layer_with_two_open_sizes(tmp_path):
    def gradients(x, w, b):
        x, w, b = (each.detach().requires_grad_() for each in (x, w, b))
        return torch.autograd.grad(nn.functional.linear(x, w, b).tanh().sum(), (x, w, b))

    first, second = (torch.export.Dim(name, min=2, max=64) for name in ("first", "second"))
    w, b = torch.rand(3, 4, dtype=torch.float64), torch.rand(3, dtype=torch.float64)
    example = torch.rand(5, 6, 4, dtype=torch.float64)
    path = tmp_path / "gradients.pt2"
    shapes = ({0: first, 1: second}, None, None)
    funcaot.export(gradients, (example, w, b), path=path, dynamic_shapes=shapes)
    loaded = funcaot.load(path)
    for sizes in ((5, 6), (7, 3), (2, 9)):
        x = torch.rand(*sizes, 4, dtype=torch.float64)
        torch.testing.assert_close(tuple(loaded(x, w, b)), gradients(x, w, b))
