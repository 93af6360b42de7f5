"""Dims that are computed from others: the user says so, or ``Dim.AUTO`` finds it."""

import pytest
import torch

import funcaot
from funcaot.errors import ArgumentError, UnsupportedError
from funcaot.exported import export

AUTO = torch.export.Dim.AUTO


def dim(**bounds):
    return torch.export.Dim("n", **{"min": 3, "max": 64, **bounds})


def steps(x, y):
    return x[1:] * y, x.new_zeros(y.shape[0] + 1)


def doubled(x, y):
    return torch.cat([x, x]) * y


def shapes_of(found):
    return [tuple(each.shape) for each in found] if isinstance(found, tuple) else found.shape


CASES = {
    "one less": (steps, lambda n: (n, n - 1), (dim(), dim() - 1)),
    "twice": (doubled, lambda n: (n, 2 * n), (dim(), 2 * dim())),
    "the derived one first": (
        lambda y, x: torch.cat([x, x]) * y,
        lambda n: (2 * n, n),
        (2 * dim(), dim()),
    ),
    "twice and one": (
        lambda x, y: torch.cat([x, x]) * y[1:],
        lambda n: (n, 2 * n + 1),
        (dim(), 2 * dim() + 1),
    ),
    "left to the function": (steps, lambda n: (n, n - 1), (AUTO, AUTO)),
    "left to it beside a named one": (steps, lambda n: (n, n - 1), (dim(), AUTO)),
    "twice, left to it": (doubled, lambda n: (n, 2 * n), (AUTO, AUTO)),
    "three, left to it": (
        lambda x, y, z: torch.cat([x, x])[1:] * y + z,
        lambda n: (n, 2 * n - 1, 2 * n - 1),
        (AUTO, AUTO, AUTO),
    ),
}


def arguments(sizes):
    return tuple(torch.arange(1.0, size + 1) for size in sizes)


@pytest.mark.slow
@pytest.mark.parametrize("case", CASES)
def test_sizes_that_belong_together(case, tmp_path):
    function, sizes, dims = CASES[case]
    path = funcaot.export(
        function,
        arguments(sizes(6)),
        path=tmp_path / "a.pt2",
        dynamic_shapes=tuple({0: each} for each in dims),
    )
    loaded = funcaot.load(path)
    for n in (3, 5, 17, 64):
        given = arguments(sizes(n))
        torch.testing.assert_close(loaded(*given), function(*given), check_stride=True)
    first, *others, last = arguments(sizes(6))
    with pytest.raises(ArgumentError, match=r"don't belong together|that agree"):
        loaded(first, *others, torch.cat([last, last]))


def exported(function, sizes, dims, tmp_path):
    return funcaot.export(
        function,
        arguments(sizes),
        path=tmp_path / "a.pt2",
        dynamic_shapes=tuple({0: each} for each in dims),
    )


@pytest.mark.parametrize(
    ("sizes", "dims", "error", "words"),
    [
        ((6, 4), (dim(), dim() - 1), ArgumentError, "'n - 1' isn't that"),
        ((6, 12), (None, 2 * dim()), ArgumentError, "no tensor has the size 'n'"),
        ((6, 5), (dim(min=2), dim(min=2) - 1), UnsupportedError, "a size of 1 for 'n - 1'"),
    ],
    ids=["another example", "without its root", "a size of 1"],
)
def test_what_does_not_fit_is_refused(sizes, dims, error, words, tmp_path):
    function = (lambda x, y: x[: y.shape[0]] * y) if sizes[1] == 4 else steps
    with pytest.raises(error, match=words):
        exported(function, sizes, dims, tmp_path)
    assert not [*tmp_path.iterdir()]


def test_the_signature_says_how_sizes_are_related(tmp_path, monkeypatch):
    found = []
    monkeypatch.setattr(export, "_compiled", lambda artifact, name: found.append(artifact) or 1)
    monkeypatch.setattr(export.files, "write", lambda *arguments: None)
    monkeypatch.setattr("pathlib.Path.replace", lambda *arguments: None)
    exported(steps, (6, 5), (dim(), dim() - 1), tmp_path)
    signature = found[0].signature
    assert [str(tensor) for tensor in signature.tensors] == ["float32[n]", "float32[n - 1]"]
    assert signature.dims == {"n": (3, 64), "n - 1": (2, 63)}
    assert signature.derived == {"n - 1": ["+", ["*", 1, "n"], -1]}
