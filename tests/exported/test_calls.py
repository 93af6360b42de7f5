"""Artifacts of all kinds of functions, compared with what eager torch computes."""

from collections import OrderedDict, namedtuple
from dataclasses import dataclass, field
from typing import Any

import pytest
import torch
from torch import nn
from torch.utils import _pytree

import funcaot
from funcaot.errors import ArgumentError
from funcaot.exported.call import ExportedCall
from tests.exported.potentials import ATOMS, ForceField, positions, with_forces

Dim = torch.export.Dim
Pair = namedtuple("Pair", "first second")
FIELD = ForceField()
NARROW = ForceField(torch.float32)


def rand(*shape, dtype=torch.float64):
    return torch.rand(*shape, dtype=dtype, generator=torch.Generator().manual_seed(len(shape)))


class Scaled(funcaot.Function):
    """A Function with a backward of its own."""

    @staticmethod
    def forward(x):
        return x.sin()

    @staticmethod
    def setup_context(ctx, inputs, output):
        ctx.save_for_backward(*inputs)

    @staticmethod
    def backward(ctx, grad_output):
        (x,) = ctx.saved_tensors
        return 10 * grad_output * x.cos()


class Normed(nn.Module):
    def __init__(self):
        super().__init__()
        self.norm = nn.BatchNorm1d(3)
        self.linear = nn.Linear(3, 2)
        self.register_buffer("shift", torch.ones(2))

    def forward(self, x, scale=2.0):
        return scale * self.linear(self.norm(x)) + self.shift


def stress(x, cell):
    """Derivative by a strain, as barostats need it."""
    strain = torch.zeros(3, 3, dtype=x.dtype, requires_grad=True)
    moved = x.detach() @ (torch.eye(3, dtype=x.dtype) + strain)
    (found,) = torch.autograd.grad(FIELD(moved), strain)
    return found / torch.linalg.det(cell)


def trees(given, pair, count, nothing, factor):
    named = {"sum": given["a"] + pair.second * count, "list": [pair.first * factor, nothing, count]}
    return OrderedDict(named), Pair(given["a"] * 2, "text"), (True, 1.5)


def aliases(x):
    made = x.sin()
    return made, made.t(), made[0], made, made.detach(), x, x.t(), x[1:]


def neighbours(x, index):
    near = x[index] - x[index.flip(0)]
    return torch.zeros_like(x).index_add(0, index, near)


WEIGHT = nn.Parameter(rand(3, 4))


@dataclass
class Case:
    function: Any
    examples: tuple
    others: tuple = ()
    dynamic_shapes: Any = None
    keywords: dict = field(default_factory=dict)


OPEN = {0: ATOMS}
CASES = {
    "float32": Case(
        with_forces(NARROW),
        (positions(5, torch.float32),),
        ((positions(64, torch.float32),),),
        (OPEN,),
    ),
    "stress": Case(stress, (positions(5), torch.eye(3).double()), (), (OPEN, None)),
    "hessian": Case(torch.func.hessian(FIELD), (positions(4),)),
    "hessian of any size": Case(
        torch.func.jacrev(torch.func.grad(FIELD)), (positions(4),), ((positions(9),),), (OPEN,)
    ),
    "vmap of grad": Case(
        torch.func.vmap(torch.func.grad(FIELD)), (rand(3, 4, 3),), ((rand(7, 4, 3),),), (OPEN,)
    ),
    "jvp": Case(lambda x, t: torch.func.jvp(FIELD, (x,), (t,)), (positions(4), positions(4) + 1)),
    "custom backward": Case(
        torch.func.grad_and_value(lambda x: Scaled.apply(x).sum()),
        (rand(5),),
        ((rand(9),),),
        (OPEN,),
    ),
    "module with buffers": Case(
        Normed().eval(), (torch.rand(4, 3),), ((torch.rand(9, 3),),), {"x": OPEN}
    ),
    "trees": Case(trees, ({"a": rand(3)}, Pair(rand(3), rand(3)), 2, None, 1.5)),
    "scalars": Case(
        lambda x, n: (x.sin(), x * n),
        (torch.tensor(2.0), torch.tensor(3)),
        ((torch.tensor(5.0), torch.tensor(-1)),),
    ),
    "aliases": Case(aliases, (rand(3, 4),), ((rand(8, 4),),), ({0: Dim("rows", min=3, max=64)},)),
    "no tensors": Case(lambda: FIELD.out.weight.detach().sum() * 2, ()),
    "transposed": Case(lambda x: x.sin(), (rand(3, 4).t(),), ((rand(3, 4).t() * 2,),)),
    "sizes": Case(
        lambda x: (x.shape[0], x.reshape(-1) * 2, x.shape[0] * 2 + 1),
        (rand(3, 4),),
        ((rand(9, 4),),),
        (OPEN,),
    ),
    "constants": Case(lambda x: (WEIGHT.detach().t(), x + torch.tensor([1.0, 2, 3])), (rand(3),)),
    "two dims": Case(
        lambda x, y: x @ y.t(),
        (rand(3, 2), rand(4, 2)),
        ((rand(4, 2), rand(4, 2)),),
        (OPEN, {0: Dim("others", min=2, max=10)}),
    ),
    "structure factor": Case(
        torch.func.grad(lambda x: (lambda r: (r * r.conj()).real)((1j * x).exp().sum() / 2)),
        (rand(5),),
    ),
    "keywords": Case(lambda x, *, y: x + y, (rand(3),), keywords={"y": rand(3)}),
    "integers": Case(lambda x: (x * 2, x.double().sum(), x > 2), (torch.arange(5),)),
    "results of ops with names": Case(lambda x: (x.max(0), x.sort(1)), (rand(3, 4),)),
    "attention without dropout": Case(
        nn.functional.scaled_dot_product_attention, (rand(1, 2, 3, 4),) * 3
    ),
    "any size": Case(lambda x: x.cumsum(0), (rand(5),), ((rand(500),),), ({0: Dim.AUTO},)),
    "neighbours": Case(
        neighbours,
        (positions(5), torch.tensor([0, 1, 4])),
        ((positions(8), torch.tensor([3, 1, 1, 7])),),
        (OPEN, {0: Dim("edges", min=2)}),
    ),
}


# Compiling takes seconds whatever is compiled: the small ones go into two artifacts.
ALONE = ("float32", "hessian of any size")
GROUPS = {
    "open sizes": [name for name in CASES if CASES[name].dynamic_shapes and name not in ALONE],
    "fixed sizes": [name for name in CASES if not CASES[name].dynamic_shapes],
    **{name: [name] for name in ALONE},
}


def together(names):
    """Several cases as one function of lists, with its examples and open dimensions."""
    cases = [CASES[name] for name in names]

    def several(examples, keywords):
        return [
            case.function(*given, **named)
            for case, given, named in zip(cases, examples, keywords, strict=True)
        ]

    def renamed(spec, number):
        if not isinstance(spec, dict):
            return spec
        return {
            dim: Dim(f"{wanted.__name__}_{number}", min=wanted.min, max=wanted.max)
            if type(wanted) is Dim
            else wanted
            for dim, wanted in spec.items()
        }

    def shapes(number, case):
        spec = case.dynamic_shapes
        spec = tuple(spec.values()) if isinstance(spec, dict) else spec
        return spec and [renamed(each, number) for each in spec]

    keywords = [case.keywords for case in cases]
    first = [list(case.examples) for case in cases]
    other = [list(case.others[0] if case.others else case.examples) for case in cases]
    return (
        several,
        (first, keywords),
        (other, keywords),
        (
            [shapes(number, case) for number, case in enumerate(cases)],
            None,
        ),
    )


@pytest.mark.slow
@pytest.mark.parametrize("group", GROUPS)
def test_values(group, tmp_path):
    function, examples, others, dynamic_shapes = together(GROUPS[group])
    path = funcaot.export(
        function, examples, path=tmp_path / "f.pt2", dynamic_shapes=dynamic_shapes
    )
    loaded = funcaot.load(path)
    for given in (examples, others):
        got, made = _pytree.tree_flatten(loaded(*given))
        wanted, structure = _pytree.tree_flatten(function(*given))
        assert made == structure
        for ours, eager in zip(got, wanted, strict=True):
            if isinstance(eager, torch.Tensor):
                close = {"rtol": 1e-10, "atol": 1e-10} if eager.dtype is torch.float64 else {}
                torch.testing.assert_close(ours, eager.detach(), check_stride=True, **close)
            else:
                assert type(ours) is type(eager)
                assert ours == eager


@pytest.mark.slow
def test_results_share_memory_where_eagers_do_and_nowhere_else(tmp_path):
    def function(x):
        own = WEIGHT.detach()
        return aliases(x), (own, own.t(), own * 1, x * 1)

    loaded = funcaot.load(funcaot.export(function, (rand(3, 4),), path=tmp_path / "f.pt2"))
    given = rand(3, 4)
    (made, turned, row, same, detached, itself, view, rest), others = loaded(given)
    assert same is made
    assert detached is not made
    assert itself is given
    made.zero_()
    for each in (turned, row, detached):
        assert not each.any()
    for each in others:
        each.fill_(7)
    torch.testing.assert_close(given, rand(3, 4))
    given.zero_()
    assert not view.any() and not rest.any()
    again = _pytree.tree_leaves(loaded(rand(3, 4)))
    for ours, eager in zip(again, _pytree.tree_leaves(function(rand(3, 4))), strict=True):
        torch.testing.assert_close(ours, eager)


@pytest.mark.slow
def test_parameters_as_inputs(tmp_path):
    path = funcaot.export(
        with_forces(FIELD),
        (positions(5),),
        path=tmp_path / "f.pt2",
        dynamic_shapes=(OPEN,),
        parameters="inputs",
    )
    loaded = funcaot.load(path)
    names = [parameter.name for parameter in loaded.signature.parameters]
    assert sorted(names) == sorted(f"energy.{name}" for name in FIELD.state_dict())
    other = ForceField()
    with torch.no_grad():
        other.out.weight.mul_(3)
    given = {f"energy.{name}": value for name, value in other.state_dict().items()}
    found = loaded(positions(6), parameters=given)
    for name, value in with_forces(other)(positions(6)).items():
        torch.testing.assert_close(found[name], value, rtol=1e-10, atol=1e-10)
    with pytest.raises(ArgumentError, match="needs parameters"):
        loaded(positions(6))
    with pytest.raises(ArgumentError, match=r"energy\.out\.bias"):
        loaded(positions(6), parameters={})
    with pytest.raises(ArgumentError, match=r"float64\[1, 8\]"):
        loaded(positions(6), parameters={**given, "energy.out.weight": torch.ones(2)})


class Tied(nn.Module):
    def __init__(self):
        super().__init__()
        self.first, self.second = nn.Linear(3, 3), nn.Linear(3, 3)
        self.second.weight = self.first.weight
        self.register_buffer("scale", torch.rand(3), persistent=False)
        self.shift = torch.rand(3)

    def forward(self, x):
        return self.second(self.first(x) * self.scale) + self.shift


@pytest.mark.slow
def test_a_state_dict_is_all_that_a_module_needs(tmp_path):
    module, x = Tied(), torch.rand(2, 3)
    path = funcaot.export(module, (x,), path=tmp_path / "f.pt2", parameters="inputs")
    loaded = funcaot.load(path)
    state = {name: value.clone() * 2 for name, value in module.state_dict().items()}
    wanted = torch.func.functional_call(module, state, (x,), tie_weights=False)
    torch.testing.assert_close(loaded(x, parameters=state), wanted.detach())
    with pytest.raises(ArgumentError, match=r"first\.weight and second\.weight"):
        loaded(x, parameters={**state, "second.weight": torch.zeros(3, 3)})
    with pytest.raises(ArgumentError, match=r"no \['first\.bias'\]"):
        loaded(x, parameters={name: state[name] for name in state if name != "first.bias"})


def windows(x, y):
    return x.as_strided((2, 2), (1, 2)), x.as_strided((2, 2), (1, 2)) * x.stride(0), y.reshape(-1)


@pytest.mark.slow
def test_what_depends_on_strides_takes_no_others(tmp_path):
    loaded = funcaot.load(
        funcaot.export(windows, (rand(3, 4), rand(3, 4)), path=tmp_path / "f.pt2")
    )
    within = rand(5, 4)[2:]  # begins later in its memory
    for given in (rand(3, 4), within):
        for ours, eager in zip(loaded(given, given), windows(given, given), strict=True):
            torch.testing.assert_close(ours, eager, check_stride=True)
    with pytest.raises(ArgumentError, match="depends on strides"):
        loaded(rand(4, 3).t(), rand(3, 4))


@pytest.mark.slow
def test_a_view_that_an_argument_does_not_have(tmp_path):
    function = lambda x: (x.reshape(-1), x + 1)  # noqa: E731
    loaded = funcaot.load(funcaot.export(function, (rand(3, 4),), path=tmp_path / "f.pt2"))
    with pytest.raises(ArgumentError, match="a view of an argument"):
        loaded(rand(4, 3).t())


@pytest.mark.slow
def test_what_was_one_tensor_and_what_was_a_value_stay_so(tmp_path):
    given = rand(3)
    path = funcaot.export(
        lambda x, y, n: torch.func.grad(lambda x: (x * y).sum())(x) * n,
        (given, given, 2),
        path=tmp_path / "f.pt2",
    )
    loaded = funcaot.load(path)
    other = rand(3) + 1
    torch.testing.assert_close(loaded(other, other, 2), 2 * other)
    with pytest.raises(ArgumentError, match="one tensor for"):
        loaded(other, other.clone(), 2)
    for value in (3, 2.0, True, None):
        with pytest.raises(ArgumentError, match="one value of"):
            loaded(other, other, value)


def test_of_what_was_compiled_the_original_is_exported():
    class Potential:
        @funcaot.compile(backend="eager")
        def energy(self, x):
            return x * 2

    potential, module = Potential(), Normed()
    method = ExportedCall.of(potential.energy, (), None, "baked")
    assert method.owner.__self__ is potential
    assert method.owner.__func__ is Potential.energy.function
    compiled = funcaot.compile(module, backend="eager")
    assert ExportedCall.of(compiled, (), None, "baked").owner is module
    assert ExportedCall.of(funcaot.compile(torch.sin), (), None, "baked").owner is torch.sin


def test_the_room_does_not_hide_the_function():
    import funcaot.exported.load as loading

    assert loading.load is funcaot.load
    assert callable(funcaot.export)
