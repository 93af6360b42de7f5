"""Ordinary numerical programs with open sizes: the values of eager, for each size, or a refusal.

The graphs run op by op here, as ``funcaot.load`` would run them; a few are compiled.
"""

import pytest
import torch
from torch.func import grad, grad_and_value, hessian, jacrev, jvp

import funcaot
from funcaot.errors import ArgumentError, UnsupportedError
from funcaot.exported import export
from funcaot.exported.load import Loaded
from tests.exported import more_programs as programs

SIZES = 2, 3, 5, 17, 64
DERIVATIVES = {
    "gradient": grad_and_value,
    "tangent": lambda f: lambda x, *rest: jvp(lambda v: f(v, *rest), (x,), (x.cos(),)),
    "forward over reverse": lambda f: (
        lambda x, *rest: jvp(lambda v: grad(f)(v, *rest), (x,), (x.cos(),))[1]
    ),
    "reverse over reverse": lambda f: (
        lambda x, *rest: grad(lambda v: (grad(f)(v, *rest) * v.detach().cos()).sum())(x)
    ),
    "hessian": hessian,
    "hessian in reverse": lambda f: jacrev(grad(f)),
}
# What is exported within seconds and shows a class of its own.
FAST = {
    *(("every_other", "gradient"), ("every_third", "gradient"), ("pairs_by_triu", "gradient")),
    *(("every_other_number", "hessian"), ("cumulated_product", "gradient"), ("product", "hessian")),
    *(("real_spectrum", "forward over reverse"), ("poisson", "gradient")),
    *(("smoothed", "hessian"), ("convolution1", "hessian in reverse"), ("tangents", "gradient")),
    *(("differences", "reverse over reverse"), ("joined", "hessian in reverse")),
    *(("joined_with_constants", "hessian"), ("selected", "hessian"), ("selected", "tangent")),
    *(("scattered_over", "hessian in reverse"), ("diagonals_of_products", "hessian")),
    *(("cumulated_maximum", "hessian in reverse"), ("reflected", "hessian in reverse")),
    *(("spectrum", "hessian in reverse"), ("branches", "gradient"), ("process", "gradient")),
}
COMPILED = [("every_other", "gradient"), ("cumulated_product", "gradient"), ("smoothed", "hessian")]


def dims_of(name, least=2):
    dim = torch.export.Dim("n", min=least, max=64)
    opened = []
    for at in programs.OPEN[name]:
        opened.append(
            None if at is None else dict.fromkeys(at if type(at) is tuple else (at,), dim)
        )
    return tuple(opened)


def exported(name, derivative, path, example=5):
    function = DERIVATIVES[derivative](programs.PROGRAMS[name])
    funcaot.export(function, programs.GIVEN[name](example), path=path, dynamic_shapes=dims_of(name))
    return function


class Captured(Exception):
    pass


@pytest.fixture
def uncompiled(monkeypatch, tmp_path):
    """What would be loaded, run op by op."""

    def stop(place, artifacts, signature):
        runners = [(lambda given, m=each.program.module: m(*given), None) for each in artifacts]
        raise Captured(Loaded(signature, runners))

    def loaded(name, derivative, **options):
        with pytest.raises(Captured) as caught:
            exported(name, derivative, tmp_path / "p.pt2", **options)
        return caught.value.args[0]

    monkeypatch.setattr(export, "_compiled", lambda artifact, name: artifact)
    monkeypatch.setattr(export.files, "write", stop)
    return loaded


def compare(loaded, function, name, sizes=SIZES):
    for size in sizes:
        given = programs.GIVEN[name](size)
        try:
            expected = function(*given)
        except RuntimeError:
            continue
        torch.testing.assert_close(loaded(*given), expected, rtol=1e-10, atol=1e-10)


# Eager's way to differentiate a batch of some ops.
@pytest.mark.filterwarnings("ignore:There is a performance drop")
@pytest.mark.parametrize(
    ("name", "derivative"),
    [
        pytest.param(name, each, marks=[pytest.mark.slow] * ((name, each) not in FAST))
        for name in programs.PROGRAMS
        for each in DERIVATIVES
    ],
)
def test_values_are_those_of_eager_at_all_sizes(name, derivative, uncompiled):
    function = DERIVATIVES[derivative](programs.PROGRAMS[name])
    try:
        function(*programs.GIVEN[name](5))
    except (RuntimeError, NotImplementedError, AssertionError) as error:
        pytest.skip(f"eager: {error}")
    try:
        loaded = uncompiled(name, derivative)
    except UnsupportedError as error:
        is_known = (name, derivative) not in FAST or name == "branches"
        if not is_known or "Instead: " not in str(error):
            raise
        return
    compare(loaded, function, name)


@pytest.mark.parametrize("example", [2, 3, 4, 9])
def test_the_example_may_be_of_any_size(example, uncompiled):
    loaded = uncompiled("every_third", "gradient", example=example)
    compare(loaded, grad_and_value(programs.PROGRAMS["every_third"]), "every_third", range(2, 12))
    assert loaded.signature.dims == {"n": (2, 64)}
    assert repr(loaded).endswith("args[0] float64[n]>")


def test_a_function_that_fails_for_some_sizes_says_for_which(tmp_path):
    def third(x):
        return x[1:].narrow(0, 0, 2).sum()

    dims = ({0: torch.export.Dim("n", min=2, max=8)},)
    with pytest.raises(UnsupportedError, match="n is 2"):
        funcaot.export(third, (torch.rand(5),), path=tmp_path / "p.pt2", dynamic_shapes=dims)


def test_a_zero_is_no_matter_for_cumulated_products(uncompiled):
    loaded = uncompiled("cumulated_product", "gradient")
    x = torch.tensor([0.5, 0.0, 2.0, 0.0, 3.0, 1.5], dtype=torch.float64)
    function = grad_and_value(programs.PROGRAMS["cumulated_product"])
    torch.testing.assert_close(loaded(x), function(x), rtol=1e-10, atol=1e-10)


@pytest.mark.slow
@pytest.mark.parametrize(("name", "derivative"), COMPILED)
def test_compiled(name, derivative, tmp_path):
    function = exported(name, derivative, tmp_path / "p.pt2")
    loaded = funcaot.load(tmp_path / "p.pt2")
    compare(loaded, function, name)
    again = funcaot.load(tmp_path / "p.pt2").signature
    assert again == loaded.signature


def test_values_that_compiled_code_fails_on(uncompiled, monkeypatch):
    """As for an index out of bounds, of which a kernel says where its own code lies."""
    loaded = uncompiled("embedded", "gradient")

    def fails(operands):
        raise RuntimeError("index out of bounds: 0 <= tmp1 < 4\nException raised from kernel.cpp")

    monkeypatch.setattr(loaded._program, "_run", fails)
    with pytest.raises(ArgumentError, match=r"index out of bounds: 0 <= tmp1 < 4\.\nExp") as caught:
        loaded(*programs.GIVEN["embedded"](5))
    assert "kernel.cpp" not in str(caught.value)
