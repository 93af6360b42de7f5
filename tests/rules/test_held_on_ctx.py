"""What a Function keeps on ctx may hold tensors of the call however deep."""

import collections
import functools
import itertools
import types
from dataclasses import dataclass

import pytest
import torch
from torch.testing import assert_close

import funcaot
from funcaot.errors import UnsupportedError


class Box:
    def __init__(self, held=None):
        self.held = held

    def get(self):
        return self.held


class Slots:
    __slots__ = ("held",)

    def __init__(self, held):
        self.held = held


class Table(dict):
    """A dictionary with attributes."""


@dataclass(frozen=True)
class Frozen:
    held: object


class Layer(torch.nn.Module):
    def __init__(self, held):
        super().__init__()
        self.register_buffer("held", held)


Pair = collections.namedtuple("Pair", "held other")


def _closure(tensor):
    return lambda: tensor


def _cycle(tensor):
    one, other = Box(tensor), Box()
    one.other, other.held = other, one
    return other


# What is kept, and how the tensor is read off it.
HOLDERS = {
    "two deep": (lambda t: Box(Box(t)), lambda kept: kept.held.held),
    "slots": (lambda t: Slots(Slots(t)), lambda kept: kept.held.held),
    "closure": (_closure, lambda kept: kept()),
    "cycle": (_cycle, lambda kept: kept.held.held),
}
MORE = {
    "three deep": (lambda t: Box([Box({"a": Box(t)})]), lambda kept: kept.held[0].held["a"].held),
    "dataclass": (lambda t: Box({"a": Frozen(Frozen(t))}), lambda kept: kept.held["a"].held.held),
    "named tuple": (lambda t: Box([Pair(t, 1)]), lambda kept: kept.held[0].held),
    "partial": (lambda t: functools.partial(torch.mul, t), lambda kept: kept(1)),
    "bound": (lambda t: Box(Box(t)).get, lambda kept: kept().held),
    "of a tensor": (lambda t: t.mul, lambda kept: kept(1)),
    "closures": (lambda t: _closure(_closure(t)), lambda kept: kept()()),
    "table": (lambda t: Table(a=t), lambda kept: kept["a"]),
    "deque": (lambda t: Box(collections.deque([t])), lambda kept: kept.held[0]),
    "set": (lambda t: {t}, lambda kept: next(iter(kept))),
    "namespace": (lambda t: types.SimpleNamespace(held=t), lambda kept: kept.held),
    "user's dict": (lambda t: collections.UserDict(a=t), lambda kept: kept["a"]),
}
LONG = pytest.mark.long
ALL = ["two deep", *[pytest.param(name, marks=LONG) for name in [*HOLDERS, *MORE][1:]]]
BOTH = [True, pytest.param(False, marks=LONG)]


def _made(keep, read, *, setup=False, values=False, by_numpy=False):
    """A Function that keeps something, and whose gradient is what it reads of that."""

    class New(torch.autograd.Function):
        generate_vmap_rule = True

        @staticmethod
        def forward(x):
            return x * 2

        @staticmethod
        def setup_context(ctx, inputs, output):
            keep(ctx, *inputs)

    class Old(torch.autograd.Function):
        generate_vmap_rule = True

        @staticmethod
        def forward(ctx, x):
            if by_numpy:
                x = torch.from_numpy(x.numpy())
            keep(ctx, x)
            return x * 2

    def backward(ctx, gradient):
        if values:
            gradient = gradient * (2.0 if gradient.sum().item() < 1e9 else 1.0)
        return gradient * read(ctx)

    made = New if setup else Old
    made.backward = staticmethod(backward)
    return made


def _keeping(holder, *, of=torch.exp, **options):
    make, get = {**HOLDERS, **MORE}[holder]

    def keep(ctx, x):
        ctx.kept = make(of(x))
        ctx.again = [ctx.kept]

    def read(ctx):
        assert ctx.again[0] is ctx.kept
        return get(ctx.kept)

    made = _made(keep, read, **options)
    return lambda x: made.apply(x.sin()).sin().sum()


def _agrees(compiled, function, sizes=(2, 3)):
    for rows in sizes:
        x = torch.randn(rows, 3, requires_grad=True)
        (expected,) = torch.autograd.grad(function(x), x)
        assert_close(torch.autograd.grad(compiled(x), x)[0], expected)


@pytest.mark.parametrize("values", BOTH)
@pytest.mark.parametrize("setup", [False, True])
@pytest.mark.parametrize("holder", ALL)
def test_a_tensor_is_found_however_deep_it_lies(holder, setup, values):
    function = _keeping(holder, setup=setup, values=values)
    _agrees(funcaot.compile(function, backend="eager"), function)


@pytest.mark.parametrize("holder", ["closure", pytest.param("two deep", marks=LONG)])
@pytest.mark.parametrize("of", [torch.exp, pytest.param(lambda x: x, marks=LONG)])
def test_at_two_orders_by_levels(holder, of):
    """A level has tensors of its own; an intermediate of forward is a constant for the second."""
    function = _keeping(holder, of=of)

    def twice(called):
        return torch.func.grad(lambda x: torch.func.grad(called)(x).square().sum())

    def eager(x):
        x = x.clone().requires_grad_()
        (first,) = torch.autograd.grad(function(x), x, create_graph=True)
        return torch.autograd.grad(first.square().sum(), x)[0]

    x = torch.randn(4, dtype=torch.float64)
    assert_close(twice(funcaot.compile(function, backend="eager"))(x), eager(x))
    batch = torch.randn(3, 4, dtype=torch.float64)
    with funcaot.install():
        assert_close(twice(function)(x), eager(x))
        rows = torch.func.vmap(torch.func.grad(function))(batch)
    for row, found in zip(batch, rows, strict=True):
        row = row.clone().requires_grad_()
        assert_close(found, torch.autograd.grad(function(row), row)[0])


@pytest.mark.parametrize("holder", ["two deep", pytest.param("closure", marks=LONG)])
def test_a_forward_on_real_values_may_keep_an_object_of_its_own(holder):
    """It runs in each call, and keeps another object that looks the same."""
    function = _keeping(holder, by_numpy=True)
    compiled = funcaot.compile(function, backend="eager")
    _agrees(compiled, function, (3, 3, 4))


def test_a_forward_on_real_values_may_keep_an_object_from_before():
    solver = Box(Box(torch.ones(3)))

    def keep(ctx, x):
        ctx.solver = solver

    made = _made(keep, lambda ctx: ctx.solver.held.held, by_numpy=True)

    def function(x):
        return made.apply(x.sin()).sum()

    compiled = funcaot.compile(function, backend="eager")
    for value in (1.0, 2.0, 3.0):
        solver.held.held = torch.full((3,), value)
        _agrees(compiled, function, (3,))


@pytest.mark.parametrize("setup", [False, True])
@pytest.mark.parametrize("holder", ["iterator", "view of a dictionary"])
def test_what_cannot_be_copied_is_refused(holder, setup):
    make = {"iterator": itertools.repeat, "view of a dictionary": _view}[holder]
    made = _made(
        lambda ctx, x: setattr(ctx, "kept", make(x.exp())),
        lambda ctx: next(ctx.kept) if holder == "iterator" else ctx.kept["a"],
        setup=setup,
        values=True,
    )
    x = torch.randn(3, requires_grad=True)
    with pytest.raises(UnsupportedError, match=r"on ctx|its ctx keeps"):
        funcaot.compile(lambda x: made.apply(x.sin()).sum(), backend="eager")(x).backward()


def _view(tensor):
    return types.MappingProxyType({"a": tensor})


@pytest.mark.parametrize("values", [False, True])
def test_a_module_that_forward_makes_is_refused_where_its_tensors_are_unknown(values):
    made = _made(
        lambda ctx, x: setattr(ctx, "kept", Layer(x.exp())),
        lambda ctx: ctx.kept.held,
        values=values,
    )
    x = torch.randn(3, requires_grad=True)
    with pytest.raises(UnsupportedError, match="in a module that forward made"):
        funcaot.compile(lambda x: made.apply(x.sin()).sum(), backend="eager")(x).backward()


def test_a_module_that_setup_context_makes_is_copied():
    made = _made(
        lambda ctx, x: setattr(ctx, "kept", Layer(x.exp())),
        lambda ctx: ctx.kept.held,
        setup=True,
        values=True,
    )

    def function(x):
        return made.apply(x.sin()).sum()

    _agrees(funcaot.compile(function, backend="eager"), function)
