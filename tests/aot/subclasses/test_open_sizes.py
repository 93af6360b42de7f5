"""Wrappers of other sizes: one program leaves them open, in metadata and inner tensors, too."""

import pytest
import torch
from torch.utils import _pytree as pytree
from torch.utils._python_dispatch import return_and_correct_aliasing

import funcaot
from tests.aot.subclasses.kinds import Factor, Int8, TwoTensor, everything, made, run, same, two
from tests.hostile import COMPILER

pytestmark = pytest.mark.filterwarnings("ignore::UserWarning")
F = torch.nn.functional
SIZES = (4, 5, 9, 2, 7, 12, 4, 3)


class Blocks(torch.Tensor):
    """A tensor that says among its metadata what it looks like, as quantized weights do."""

    @staticmethod
    def __new__(cls, inner, shape, block):
        return torch.Tensor._make_wrapper_subclass(cls, shape, dtype=inner.dtype)

    def __init__(self, inner, shape, block):
        self.inner, self.told, self.block = inner, shape, block

    def __tensor_flatten__(self):
        return ["inner"], [self.told, self.block]

    @staticmethod
    def __tensor_unflatten__(inner, context, size, stride):
        return Blocks(inner["inner"], *context)

    @classmethod
    def of(cls, inner):
        return cls(inner, tuple(inner.shape), (1, inner.shape[1]))

    @classmethod
    def __torch_dispatch__(cls, func, types, args=(), kwargs=None):
        plain = pytree.tree_map_only(Blocks, lambda v: v.inner, (args, kwargs or {}))
        result = func(*plain[0], **plain[1])
        wrapped = pytree.tree_map_only(torch.Tensor, Blocks.of, result)
        return return_and_correct_aliasing(func, args, kwargs or {}, wrapped)


class Counted(Factor):
    """A tensor whose metadata hold a number that is computed from its sizes."""

    @staticmethod
    def __tensor_unflatten__(inner, context, size, stride):
        return Counted(inner["inner"], context["factor"])

    @classmethod
    def of(cls, inner):
        return cls(inner, 2 * inner.shape[0])

    @classmethod
    def __torch_dispatch__(cls, func, types, args=(), kwargs=None):
        plain = pytree.tree_map_only(Counted, lambda v: v.inner, (args, kwargs or {}))
        result = func(*plain[0], **plain[1])
        wrapped = pytree.tree_map_only(torch.Tensor, Counted.of, result)
        return return_and_correct_aliasing(func, args, kwargs or {}, wrapped)


def nested(n):
    return TwoTensor(two(0, n, 3, grad=False), two(3, n, 3, grad=False)).requires_grad_()


PROGRAMS = {
    "pointwise": (lambda x: (x.sin() * 2).exp(), lambda n: (two(0, n, 3),)),
    "the size itself": (lambda x: x.sum(0) * x.shape[0], lambda n: (two(0, n, 3),)),
    "product": (lambda x, w: (x @ w).tanh(), lambda n: (two(0, n, 3), made(1, 3, 4))),
    "sizes in the middle": (lambda x, w: (x @ w).tanh(), lambda n: (two(0, 3, n), made(1, n, 4))),
    "nested": (lambda x: x.sin().sum(0) * 2, lambda n: (nested(n),)),
    "metadata": (
        lambda x: x.sin().t() * 3,
        lambda n: (Factor(made(0, n, 3, grad=False), 3).requires_grad_(),),
    ),
    "sizes among the metadata": (
        lambda x: (x.sin().t() * 3).t(),
        lambda n: (Blocks.of(made(0, n, n + 1, grad=False)).requires_grad_(),),
    ),
    "rows among the metadata": (
        lambda x: x.reshape(-1, 2) * 2,
        lambda n: (Blocks.of(made(0, n, 4, grad=False)).requires_grad_(),),
    ),
    "quantized weight": (
        lambda x, w: F.linear(x, w).relu(),
        lambda n: (made(0, 6, 5), Int8.of(made(1, n, 5, grad=False))),
    ),
}


@pytest.mark.parametrize("order", [1, 2])
@pytest.mark.parametrize("program", PROGRAMS)
def test_one_program_for_all_sizes(program, order):
    function, make = PROGRAMS[program]
    compiled = funcaot.compile(function, backend=COMPILER)
    for n in SIZES:
        same(
            run(compiled, lambda n=n: make(n), order=order),
            run(function, lambda n=n: make(n), order=order),
        )
    assert len(compiled.entries) == 2
    assert compiled.entries[1].generations == 1  # its generated code takes all of them


@pytest.mark.slow
@pytest.mark.parametrize(
    "program", ["product", "nested", "rows among the metadata", "quantized weight"]
)
def test_on_the_default_backend(program):
    function, make = PROGRAMS[program]
    compiled = funcaot.compile(function)
    for n in SIZES:
        same(
            run(compiled, lambda n=n: make(n), order=2), run(function, lambda n=n: make(n), order=2)
        )
    assert len(compiled.entries) == 2


TANGENTS = {
    "plain": torch.ones_like,
    "nested": lambda y: TwoTensor(TwoTensor(y.a, y.b), TwoTensor(y.b, y.a)),
    "another class": lambda y: Factor(y.a.detach().clone(), 2),
    "other strides": lambda y: TwoTensor(y.a.t().contiguous().t(), y.b.t().contiguous().t()),
}


@pytest.mark.parametrize("kind", TANGENTS)
def test_gradients_as_they_come(kind):
    def function(x):
        return x.sin().exp()

    def tangent(y):
        with torch.no_grad():
            return torch.ones(y.shape) if kind == "plain" else TANGENTS[kind](y.detach())

    compiled = funcaot.compile(function, backend=COMPILER)
    for n in SIZES:
        made_here = [run(f, lambda n=n: (two(0, n, 3),), tangent) for f in (compiled, function)]
        same(*made_here)
    assert len(compiled.entries) == 2
    assert funcaot.report(compiled).backward_traces == 3  # and the usual one, which is foreseen


EFFECTS = {
    "view": lambda x: x.view(-1),
    "part": lambda x: x[: x.shape[0] - 1].unsqueeze(0).expand(4, -1, -1),
    "detached": lambda x: (x.detach(), x * 2),
    "itself": lambda x: (x, x * x.shape[0]),
    "written": lambda x: x.mul_(2).sin(),
    "a part is written": lambda x: (x[1:].mul_(2), x.sin())[1],
    "turned": lambda x: x.t_() * 2,
}


@pytest.mark.parametrize("effect", EFFECTS)
def test_effects(effect):
    compiled = funcaot.compile(EFFECTS[effect], backend=COMPILER)
    for n in (4, 5, 9, 6, 7, 12):
        same(
            everything(compiled, lambda n=n: (two(0, n, 3) * 1,)),
            everything(EFFECTS[effect], lambda n=n: (two(0, n, 3) * 1,)),
        )
    assert len(compiled.entries) == 2


def test_sizes_are_open_from_the_first_call_on():
    compiled = funcaot.compile(lambda x: x.sin(), backend=COMPILER, dynamic=True)
    for n in SIZES:
        same(compiled(two(0, n, n + 1, grad=False)), two(0, n, n + 1, grad=False).sin())
    assert len(compiled.entries) == 1
    marked = funcaot.compile(lambda x: x.sin(), backend=COMPILER)
    for n in SIZES:
        x = two(0, n, 3, grad=False)
        funcaot.mark_dynamic(x, 0)
        same(marked(x), two(0, n, 3, grad=False).sin())
    assert len(marked.entries) == 1


def test_what_computes_metadata_from_sizes_has_a_program_for_each():
    compiled = funcaot.compile(lambda x: x.sin(), backend=COMPILER)
    for n in SIZES:
        x = Counted.of(made(0, n, 3, grad=False))
        found, wanted = compiled(x), x.sin()
        assert found.factor == wanted.factor
        same(found, wanted)
    assert len(compiled.entries) == len(set(SIZES))


NUMBERED = {
    "wrapper": lambda n: two(0, n, 4),
    "jagged": lambda n: torch.nested.nested_tensor_from_jagged(
        made(1, n + 3, 4, grad=False), torch.tensor([0, 2, n, n + 3])
    ).requires_grad_(),
}


@pytest.mark.parametrize("kind", NUMBERED)
def test_numbers_beside_wrappers_stay_open(kind):
    """Two programs, with sizes that change as well; a branch on a number is one more."""

    def function(x, scale, count):
        x = x * 2 if scale > 3 else x
        return (x * scale + count).sin()

    def plain(x):
        return x.values() if x.is_nested else x

    compiled = funcaot.compile(function, backend=COMPILER, fullgraph=True)
    for step in range(5):
        x = NUMBERED[kind](4 + step)
        given = (0.5 + step, 3 + step)
        found, wanted = compiled(x, *given), function(x, *given)
        same(plain(found), plain(wanted))
        gradients = [torch.autograd.grad(plain(y).sum(), x)[0] for y in (found, wanted)]
        same(*map(plain, gradients))
    assert len(compiled.entries) == 3
