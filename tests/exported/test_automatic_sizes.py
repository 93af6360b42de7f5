"""Dims that are left to the capture, and conditions that are true of all sizes without bounds."""

import pytest
import torch

import funcaot
from funcaot.errors import UnsupportedError
from funcaot.exported import export

Dim = torch.export.Dim
AUTO, DYNAMIC = Dim.AUTO, Dim.DYNAMIC
FREE = 2**63 - 1


class Captured(Exception):
    pass


@pytest.fixture
def signature(monkeypatch, tmp_path):
    """What a function would be exported with; nothing is compiled."""

    def stop(artifact, name):
        raise Captured(artifact.signature)

    def exported(function, examples, dynamic_shapes):
        monkeypatch.setattr(export, "_compiled", stop)
        path = tmp_path / "f.pt2"
        with pytest.raises(Captured) as caught:
            funcaot.export(function, examples, path=path, dynamic_shapes=dynamic_shapes)
        return caught.value.args[0]

    return exported


def shapes(signature):
    return [tensor.shape for tensor in signature.tensors]


def added(x, y):
    return x + y


ROWS = torch.rand(5, 3), torch.rand(5, 3)


@pytest.mark.parametrize("kind", [AUTO, DYNAMIC])
def test_two_that_have_to_be_equal_are_one(signature, kind):
    found = signature(added, ROWS, ({0: kind}, {0: kind}))
    assert list(found.dims.values()) == [(2, FREE)]
    (name,) = found.dims
    assert shapes(found) == [(name, 3), (name, 3)]


@pytest.mark.parametrize("order", [1, -1])
def test_one_that_is_equal_to_a_named_one_is_that(signature, order):
    dims = ({0: Dim("n", min=3, max=9)}, {0: AUTO})[::order]
    found = signature(added, ROWS, dims)
    assert found.dims == {"n": (3, 9)}
    assert shapes(found) == [("n", 3), ("n", 3)]


def test_one_that_has_to_be_a_number_is_that(signature):
    found = signature(lambda x, y: x * y[0].reshape(5, 1), (ROWS[0], torch.rand(1, 5)), (
        {0: AUTO, 1: AUTO}, {1: AUTO},
    ))  # fmt: skip
    (name,) = found.dims
    assert shapes(found) == [(5, name), (1, 5)]
    with pytest.raises(UnsupportedError, match="assumes"):
        signature(lambda x: x.reshape(5, 3), ROWS[:1], ({0: DYNAMIC},))


def test_the_least_size_is_found(signature):
    found = signature(lambda x: x[1:].contiguous() + 1, ROWS[:1], ({0: AUTO},))
    assert list(found.dims.values()) == [(3, FREE)]


def test_an_example_of_one_row_stays_so(signature):
    found = signature(lambda x: x * 2, (torch.rand(1, 3),), ({0: AUTO, 1: AUTO},))
    assert len(found.dims) == 1
    assert shapes(found)[0][0] == 1


def test_a_dim_without_an_upper_bound(signature):
    found = signature(lambda x: x[1:].contiguous() + 1, ROWS[:1], ({0: Dim("n", min=3)},))
    assert found.dims == {"n": (3, FREE)}


@pytest.mark.slow
def test_an_artifact_with_equal_sizes(tmp_path):
    path = funcaot.export(
        added, ROWS, path=tmp_path / "f.pt2", dynamic_shapes=({0: AUTO}, {0: AUTO})
    )
    loaded = funcaot.load(path)
    for rows in (2, 5, 8):
        x = torch.rand(rows, 3)
        torch.testing.assert_close(loaded(x, x.sin()), x + x.sin())
    with pytest.raises(funcaot.errors.ArgumentError):
        loaded(torch.rand(4, 3), torch.rand(5, 3))


def structure_factor(x):
    return torch.exp(1j * (x @ torch.eye(3))).sum(0).abs().square().sum()


def spectrum(x):
    return torch.fft.rfft(x).abs().square().sum() + torch.fft.fftn(x).abs().sum()


def complex_functions(x, z):
    return [
        torch.func.grad(structure_factor)(x),
        torch.func.grad(spectrum)(x),
        torch.where(z.real > 0, z, 0),
        torch.where(z.real > 0, z, 1 - 2j),
        z * z.conj() + 2 - 1j,
        torch.func.grad(lambda x: torch.polar(x, x * 2).sum().abs())(x),
    ]


@pytest.mark.slow
def test_complex_numbers(tmp_path):
    """Constants of graphs are real ones: a package has no complex numbers among arguments."""
    torch.manual_seed(0)
    given = torch.rand(4, 3) + 0.1, torch.randn(5, dtype=torch.complex64)
    loaded = funcaot.load(funcaot.export(complex_functions, given, path=tmp_path / "f.pt2"))
    torch.testing.assert_close(loaded(*given), complex_functions(*given), rtol=1e-4, atol=1e-4)
