"""What a Function keeps on ctx for its backward: in what, made where, changed when."""

import collections
import functools
import types

import pytest
import torch
from torch.testing import assert_close

import funcaot
from funcaot.errors import UnsupportedError


class Box:
    def __init__(self, held=None):
        self.held, self.count = held, 0

    def get(self):
        return self.held


class Slots:
    __slots__ = ("held",)

    def __init__(self, held):
        self.held = held


class Table(dict):
    """A dictionary with attributes."""


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
    "partial": (lambda t: functools.partial(torch.mul, t), lambda kept: kept(1)),
    "bound": (lambda t: Box(Box(t)).get, lambda kept: kept().held),
    "of a tensor": (lambda t: t.mul, lambda kept: kept(1)),
    "closures": (lambda t: _closure(_closure(t)), lambda kept: kept()()),
    "table": (lambda t: Table(a=t), lambda kept: kept["a"]),
    "deque": (lambda t: Box(collections.deque([t])), lambda kept: kept.held[0]),
    "namespace": (lambda t: types.SimpleNamespace(held=t), lambda kept: kept.held),
    "user's dict": (lambda t: collections.UserDict(a=t), lambda kept: kept["a"]),
}
ALL = [*HOLDERS, *[pytest.param(name, marks=pytest.mark.long) for name in MORE]]


def _made(keep, read, *, setup=False, values=False, forward_values=False):
    """A Function that keeps something, and whose gradient is what it reads of that."""

    def backward(ctx, gradient):
        if values:
            gradient = gradient * (2.0 if gradient.sum().item() < 1e9 else 1.0)
        return gradient * read(ctx)

    class New(torch.autograd.Function):
        @staticmethod
        def forward(x):
            return x * 2

        @staticmethod
        def setup_context(ctx, inputs, output):
            keep(ctx, *inputs)

    class Old(torch.autograd.Function):
        @staticmethod
        def forward(ctx, x):
            if forward_values:
                x = torch.from_numpy(x.numpy())
            keep(ctx, x)
            return x * 2

    made = New if setup else Old
    made.backward = staticmethod(backward)
    return lambda x: made.apply(x.sin()).sum()


def _agrees(compiled, function, sizes=(2, 3)):
    for rows in sizes:
        x = torch.randn(rows, 3, requires_grad=True)
        (expected,) = torch.autograd.grad(function(x), x)
        assert_close(torch.autograd.grad(compiled(x), x)[0], expected)


@pytest.mark.parametrize("setup", [False, True])
@pytest.mark.parametrize("holder", ALL)
def test_a_tensor_is_found_however_deep_it_lies(holder, setup):
    make, get = {**HOLDERS, **MORE}[holder]

    def keep(ctx, x):
        ctx.kept = make(x.exp())
        ctx.again = [ctx.kept]

    def read(ctx):
        assert ctx.again[0] is ctx.kept
        return get(ctx.kept)

    function = _made(keep, read, setup=setup, values=True)
    _agrees(funcaot.compile(function, backend="eager"), function)


@pytest.mark.parametrize("holder", ["two deep", "closure"])
def test_a_forward_on_real_values_may_keep_an_object_of_its_own(holder):
    make, get = HOLDERS[holder]
    function = _made(
        lambda ctx, x: setattr(ctx, "kept", make(x * 3)),
        lambda ctx: get(ctx.kept),
        forward_values=True,
    )
    _agrees(funcaot.compile(function, backend="eager"), function)


@pytest.mark.parametrize("setup", [False, True])
@pytest.mark.parametrize("items", [lambda x: [x.exp()], lambda x: range(9)])
def test_an_iterator_is_refused_where_values_are_read(items, setup):
    def keep(ctx, x):
        ctx.kept = iter(items(x))

    function = _made(keep, lambda ctx: next(ctx.kept), setup=setup, values=True)
    x = torch.randn(3, requires_grad=True)
    with pytest.raises(UnsupportedError, match="on ctx"):
        funcaot.compile(function, backend="eager")(x).backward()


@pytest.mark.parametrize("setup", [False, True])
@pytest.mark.parametrize("kept", ["attribute", "saved", "object"])
def test_a_table_that_was_there_before_may_be_replaced(kept, setup):
    tables = {"now": torch.ones(3)}

    def keep(ctx, x):
        if kept == "attribute":
            ctx.table = tables["now"]
        elif kept == "saved":
            ctx.save_for_backward(tables["now"])
        else:
            ctx.table = Box(Box(tables["now"]))

    def read(ctx):
        if kept == "saved":
            return ctx.saved_tensors[0]
        return ctx.table if kept == "attribute" else ctx.table.held.held

    function = _made(keep, read, setup=setup)
    compiled = funcaot.compile(function, backend="eager")
    _agrees(compiled, function, (2,))
    tables["now"].mul_(3)
    _agrees(compiled, function, (2,))
    tables["now"] = torch.full((3,), 5.0)
    _agrees(compiled, function, (2,))


@pytest.mark.parametrize("values", [False, True])
@pytest.mark.parametrize("setup", [False, True])
def test_a_backward_leaves_objects_that_its_call_made(setup, values):
    """A program has one of each for all calls, so that the second call would count to two."""

    def count(ctx):
        ctx.kept.count += 1
        return ctx.kept.count

    def keep(ctx, x):
        ctx.kept = Box()

    x = torch.randn(3, requires_grad=True)
    compiled = funcaot.compile(_made(keep, count, setup=setup, values=values), backend="eager")
    for _ in range(2):
        with pytest.raises(UnsupportedError, match="changes a Box that its forward made"):
            compiled(x).backward()
    shared = [Box(), Box()]

    def keeping(box):
        return lambda ctx, x: setattr(ctx, "kept", box)

    functions = [_made(keeping(box), count, setup=setup, values=values) for box in shared]
    compiled = funcaot.compile(functions[0], backend="eager")
    for _ in range(3):
        expected, found = (torch.autograd.grad(f(x), x)[0] for f in (functions[1], compiled))
        assert_close(found, expected)
    assert shared[0].count == shared[1].count == 3
