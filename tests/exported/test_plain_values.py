"""What goes into an artifact and comes out of it besides tensors; tensors that aren't plain."""

import pytest
import torch
from torch import nn
from torch._subclasses import FakeTensorMode
from torch.testing._internal.two_tensor import TwoTensor

import funcaot
from funcaot.errors import ArgumentError, UnsupportedError
from funcaot.exported import export
from funcaot.exported.load import Loaded
from funcaot.exported.signature import ArtifactSignature

N = torch.export.Dim("n", min=2, max=64)
SCALE = 3.0


class Captured(Exception):
    pass


@pytest.fixture
def uncompiled(monkeypatch, tmp_path):
    """What would be loaded, run op by op."""

    def stop(place, artifacts, signature):
        runners = [(lambda given, m=each.program.module: m(*given), None) for each in artifacts]
        raise Captured(Loaded(ArtifactSignature.from_json(signature.to_json(), "p"), runners))

    def loaded(*arguments, **options):
        with pytest.raises(Captured) as caught:
            funcaot.export(*arguments, path=tmp_path / "p.pt2", **options)
        return caught.value.args[0]

    monkeypatch.setattr(export, "_compiled", lambda artifact, name: artifact)
    monkeypatch.setattr(export.files, "write", stop)
    return loaded


def by_identity(x):
    return x * 2 if SCALE is not torch.bool else x


def counted(x):
    n = x.shape[0]
    return x * 2, [n, 3], min(n, 7), n - 7


CASES = {
    "a shape": lambda x: (x * 2, x.shape, x.size()),
    "numbers made of a size, and others": counted,
    "a view of another dtype": lambda x: ((y := x * 2), y.view(torch.int64), x.view(torch.int32)),
    "code that asks by identity": by_identity,
    "what torch.compile was given": torch.compile(lambda x: x * 2, backend="eager"),
    "a module that torch.compile was given": torch.compile(
        nn.Linear(3, 2).double(), backend="eager"
    ),
}


@pytest.mark.parametrize("name", CASES)
def test_values(name, uncompiled):
    function = CASES[name]
    original = getattr(function, "_torchdynamo_orig_callable", function)
    original = getattr(function, "_orig_mod", original)
    loaded = uncompiled(function, (torch.rand(5, 3).double(),), dynamic_shapes=({0: N},))
    for rows in (2, 9, 5):
        x = torch.rand(rows, 3).double()
        found, wanted = loaded(x), original(x)
        assert type(found) is type(wanted)
        if isinstance(wanted, torch.Tensor):
            found, wanted = (found,), (wanted.detach(),)
        for ours, eager in zip(found, wanted, strict=True):
            assert type(ours) is type(eager)
            if isinstance(eager, torch.Tensor):
                torch.testing.assert_close(ours, eager)
            else:
                assert ours == eager


def test_dtypes_and_devices_are_constants(uncompiled):
    def converted(x, dtype, device):
        return x.to(dtype).to(device) * 2, dtype

    given = torch.rand(3), torch.float64, torch.device("cpu")
    loaded = uncompiled(converted, given)
    found, dtype = loaded(*given)
    torch.testing.assert_close(found, converted(*given)[0])
    assert dtype is torch.float64
    with pytest.raises(ArgumentError, match=r"torch\.float64 \(dtype\)"):
        loaded(given[0], torch.float32, given[2])


class Own(torch.Tensor):
    """A class that results are of, too."""


def freed():
    made = torch.rand(4, 3)
    made.untyped_storage().resize_(0)
    return made


def of_the_other_process():
    with FakeTensorMode():
        return torch.rand(4, 3)


ODD = {
    "class Own": lambda: torch.rand(4, 3).as_subclass(Own),
    "class TwoTensor": lambda: TwoTensor(torch.rand(4, 3), torch.rand(4, 3)),
    "class FakeTensor": of_the_other_process,
    "nested tensor": lambda: torch.nested.nested_tensor([torch.rand(4, 3), torch.rand(2, 3)]),
    "transform that has ended": lambda: torch._to_functional_tensor(torch.rand(4, 3)),
    "memory was freed": freed,
}


@pytest.mark.filterwarnings("ignore:The PyTorch API of nested tensors")
@pytest.mark.parametrize("words", ODD)
def test_tensors_without_plain_memory_are_refused_by_a_call(words, uncompiled):
    """Compiled code would read where nothing is, or return another class than eager."""
    loaded = uncompiled(torch.sin, (torch.rand(4, 3),))
    with pytest.raises(ArgumentError, match=words):
        loaded(ODD[words]())
    plain = torch.rand(4, 3)
    torch.testing.assert_close(loaded(nn.Parameter(plain, requires_grad=False)), plain.sin())


@pytest.mark.parametrize("words", ["class Own"])
def test_and_by_an_export(words, tmp_path):
    odd = ODD[words]()
    for function, given in ((torch.sin, odd), (lambda x: x * odd, torch.rand(4, 3))):
        with pytest.raises(UnsupportedError, match=words):
            funcaot.export(function, (given,), path=tmp_path / "p.pt2")


def test_a_call_that_makes_its_example_require_grad_says_what_to_do(tmp_path):
    def forces(x):
        x.requires_grad_()
        return torch.autograd.grad(x.sin().sum(), x)[0]

    with pytest.raises(UnsupportedError, match="an example that requires grad already"):
        funcaot.export(forces, (torch.rand(3),), path=tmp_path / "p.pt2")


ROWS = {0: N}
SPECIFIED = {
    "those of *args as one": (ROWS, (ROWS,), {"z": ROWS}),
    "by name": {"x": ROWS, "rest": (ROWS,), "named": {"z": ROWS}},
}


@pytest.mark.parametrize("name", SPECIFIED)
def test_dynamic_shapes_of_variable_arguments(name, uncompiled):
    def summed(x, *rest, **named):
        return x * rest[0] + named["z"]

    rows = [torch.rand(5, 3) for _ in range(3)]
    loaded = uncompiled(summed, rows[:2], {"z": rows[2]}, dynamic_shapes=SPECIFIED[name])
    for size in (2, 9):
        x, y, z = (torch.rand(size, 3) for _ in range(3))
        torch.testing.assert_close(loaded(x, y, z=z), summed(x, y, z=z))
