"""What an artifact can't do is refused by name before anything is compiled."""

import sys
from dataclasses import dataclass

import pytest
import torch
from torch import nn

import funcaot
from funcaot.errors import ArgumentError, UnsupportedError
from tests.exported.potentials import ATOMS, ForceField, positions

Dim = torch.export.Dim


@pytest.fixture(autouse=True)
def _nothing_is_compiled(monkeypatch):
    _ = funcaot.export
    monkeypatch.setattr(sys.modules["funcaot.exported.export"], "_compiled", _never)


def _never(artifact, name):
    pytest.fail("it was compiled")


class OnValues(funcaot.Function):
    @staticmethod
    def forward(x):
        return torch.from_numpy(x.detach().numpy() * 2)

    @staticmethod
    def setup_context(ctx, inputs, output):
        pass

    @staticmethod
    def backward(ctx, grad_output):
        return grad_output * 2


class Counting(nn.Module):
    def __init__(self):
        super().__init__()
        self.last = torch.zeros(3)

    def forward(self, x):
        self.last = x * 2
        return self.last.sin()


class Odd:
    pass


@torch.library.custom_op("funcaot_tests::doubled", mutates_args=())
def doubled(x: torch.Tensor) -> torch.Tensor:
    return x * 2


@doubled.register_fake
def _(x):
    return torch.empty_like(x)


def steps_an_optimizer(x):
    weight = nn.Parameter(torch.ones(3))
    torch.optim.SGD([weight], 0.1).step()
    return x * weight


WEIGHT = torch.ones(3, requires_grad=True)
SCALED = torch.ones(3)
SCALED.scale = 2


def fills_grad(x):
    (x * WEIGHT).sum().backward()
    return x * 2


def leaves_no_grad(x):
    torch.set_grad_enabled(False)
    return x * 2


@pytest.mark.parametrize(
    ("function", "words"),
    [
        (lambda x: x.add_(1), r"changes args\[0\]"),
        (lambda x: x if x.sum() > 0 else -x, "reads values of tensors"),
        (lambda x: x * x.sum().item(), "reads values of tensors"),
        (lambda x: x[x > 0], "reads values of tensors"),
        (lambda x: OnValues.apply(x), "calls OnValues"),
        (Counting(), "stores what it computes"),
        (nn.Sequential(nn.BatchNorm1d(3)), r"changes 0\.\w+"),
        (nn.Dropout(), "draws random numbers"),
        (lambda x: x + torch.randn(3), "draws random numbers"),
        (lambda x: torch.ops.funcaot_tests.doubled(x), "funcaot_tests.doubled"),
        (fills_grad, "`.grad`"),
        (leaves_no_grad, "leaves grad mode switched"),
        (lambda x: x, "computes nothing"),
        (lambda x: WEIGHT * x.to_sparse().to_dense(), "plain strided"),
        (lambda x: x.to_sparse(), "plain strided"),
        (lambda x: x.as_strided((2,), (1,), 1) * 2, "names a place in memory"),
        (lambda x: x * x.storage_offset(), "names a place in memory"),
        (lambda x: x * 2 if x._is_view() else x, r"reads _is_view of args\[0\]"),
        (lambda x: x * getattr(x, "scale", 1), r"the attribute 'scale' of args\[0\]"),
        (lambda x: (x * 2, Odd()), "Odd"),
        (lambda x: {(1, 2): x * 2}, r"the key \(1, 2\)"),
    ],
)
def test_functions(function, words, tmp_path):
    given = torch.ones(4, 3) if isinstance(function, nn.Module) else torch.ones(3)
    with pytest.raises(UnsupportedError, match=words) as caught:
        funcaot.export(function, (given,), path=tmp_path / "f.pt2")
    assert "Instead:" in str(caught.value)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("given", "words"),
    [
        ((torch.ones(3).to_sparse(),), "plain strided"),
        ((torch.ones(3, dtype=torch.complex64).conj(),), "a conjugate"),
        ((torch.ones(3, device="meta"),), "on meta"),
        ((Odd(),), "Odd"),
        (({Odd: 1},), "key"),
        ((WEIGHT,), "reaches this tensor"),
        ((SCALED,), r"the attribute 'scale' of args\[0\]"),
    ],
)
def test_arguments(given, words, tmp_path):
    with pytest.raises(UnsupportedError, match=words):
        funcaot.export(lambda x: WEIGHT * 2, given, path=tmp_path / "f.pt2")


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ((3, ()), "the function"),
        ((nn.Linear, ()), "the function"),
        ((torch.sin, torch.ones(3)), "args"),
        ((torch.sin, (torch.ones(3),), [1]), "kwargs"),
    ],
)
def test_what_isnt_a_call(arguments, words, tmp_path):
    with pytest.raises(ArgumentError, match=words):
        funcaot.export(*arguments, path=tmp_path / "f.pt2")


def test_an_unknown_way_to_keep_parameters(tmp_path):
    with pytest.raises(ArgumentError, match="'inside'"):
        funcaot.export(
            torch.sin,
            (torch.ones(3),),
            path=tmp_path / "f.pt2",
            parameters="inside",  # type: ignore[arg-type]
        )


def test_inside_of_a_transform(tmp_path):
    def inside(x):
        funcaot.export(torch.sin, (torch.ones(3),), path=tmp_path / "f.pt2")
        return x

    with pytest.raises(UnsupportedError, match="inside of a transform"):
        torch.func.vmap(inside)(torch.ones(3))


def test_exceptions_of_the_function_pass_through(tmp_path):
    def wrong(x):
        raise LookupError("mine")

    with pytest.raises(LookupError, match="mine"):
        funcaot.export(wrong, (torch.ones(3),), path=tmp_path / "f.pt2")


@dataclass
class Case:
    dynamic_shapes: object
    words: str
    error: type = ArgumentError


@pytest.mark.parametrize(
    "case",
    [
        Case(({0: Dim("n", min=6, max=9)},), "6 to 9.\nGot: 5"),
        Case(({0: Dim("n", min=1, max=9)},), "sizes of 0 or 1", UnsupportedError),
        Case(({0: 2 * Dim("n")},), "no tensor has the size 'n'"),
        Case(({1: 4},), "3, the size of the example"),
        Case(({2: ATOMS},), "for 2 dimensions"),
        Case((ATOMS,), "for 2 dimensions"),
        Case(((ATOMS,),), "for 2 dimensions"),
        Case(({0: ATOMS}, None, None), "1 positional"),
        Case({"y": {0: ATOMS}}, r"names among \['positions'\]"),
        Case("n", "a dictionary by name"),
        Case(({0: "n"},), "torch.export.Dim"),
        Case(({0: ATOMS, 1: ATOMS},), "has two sizes"),
        Case(({0: ATOMS, 1: Dim("atoms", min=2, max=9)},), "with the same bounds"),
    ],
    ids=lambda case: case.words,
)
def test_dynamic_shapes(case, tmp_path):
    with pytest.raises(case.error, match=case.words):
        funcaot.export(
            ForceField(),
            (positions(5),),
            path=tmp_path / "f.pt2",
            dynamic_shapes=case.dynamic_shapes,
        )


@pytest.mark.parametrize(
    ("function", "dynamic_shapes", "words"),
    [
        (lambda x, y: x * len(range(x.shape[0])), ({0: ATOMS},), r"assumes Eq\(atoms, 5\)"),
        (lambda x, y: x * 2 if x.shape[0] > 4 else x, ({0: ATOMS},), "atoms is 2 to 4"),
        (lambda x, y: x + y, ({0: Dim("n")}, {0: Dim("m")}), "can't be proved"),
        (lambda x, y: x + y, ({0: ATOMS}, None), r"assumes Eq\(atoms, 5\)"),
    ],
)
def test_a_function_that_works_for_some_sizes_only(function, dynamic_shapes, words, tmp_path):
    with pytest.raises(UnsupportedError, match=words):
        funcaot.export(
            function,
            (positions(5), positions(5)),
            path=tmp_path / "f.pt2",
            dynamic_shapes=dynamic_shapes,
        )


class Doubled(funcaot.Function):
    @staticmethod
    def forward(x):
        return x * 2

    @staticmethod
    def setup_context(ctx, inputs, output):
        pass

    @staticmethod
    def backward(ctx, grad_output):
        return grad_output * 2


def test_what_a_function_class_is_kept_with_is_no_effect(tmp_path):
    held = [Doubled]
    with pytest.raises(pytest.fail.Exception, match="it was compiled"):
        funcaot.export(lambda x: held[0].apply(x), (torch.ones(3),), path=tmp_path / "f.pt2")


def test_one_remedy_for_what_opens_no_sizes(tmp_path):
    """The capture's own remedy is for calls, not for exports."""
    with pytest.raises(UnsupportedError) as raised:
        funcaot.export(
            lambda x: torch.cov(torch.stack([x, x * 2])),
            (torch.rand(4),),
            path=tmp_path / "a.pt2",
            dynamic_shapes=({0: Dim("n", min=2, max=9)},),
        )
    assert str(raised.value).count("Instead:") == 1


def by_number(x):
    y = x.sin()
    return y * len(range(x.shape[0]))


def taken(x):
    places = torch.arange(x.shape[0])
    return x.take(places).sin().sum()


@pytest.mark.filterwarnings("ignore:There is a performance drop")
@pytest.mark.parametrize(
    ("function", "words"),
    [
        (by_number, r"Eq\(n, 5\), at test_refusals.py:\d+"),
        (torch.func.hessian(taken), "in take at"),
    ],
    ids=["number", "op"],
)
def test_a_refusal_names_the_op_and_the_line(function, words, tmp_path):
    dims = ({0: torch.export.Dim("n", min=2, max=8)},)
    with pytest.raises(UnsupportedError, match=words) as caught:
        funcaot.export(function, (torch.rand(5),), path=tmp_path / "p.pt2", dynamic_shapes=dims)
    line = int(str(caught.value).partition("test_refusals.py:")[2].partition(",")[0])
    code = (by_number if function is by_number else taken).__code__
    assert line == code.co_firstlineno + 2


@pytest.mark.skipif(torch.__version__ >= (2, 15), reason="torch leaves these sizes open")
def test_forward_mode_over_a_gradient_under_vmap(tmp_path):
    def laplacian(x):
        return torch.func.vmap(torch.func.hessian(lambda point: point.square().sum()))(x)

    n = Dim("n", min=2, max=64)
    with pytest.raises(UnsupportedError, match=r"jacrev\(grad\(f\)\) for hessian\(f\)"):
        funcaot.export(
            laplacian, (torch.rand(5, 2),), path=tmp_path / "f.pt2", dynamic_shapes=({0: n},)
        )
