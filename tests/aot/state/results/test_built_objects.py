"""Objects with tensors that a function makes, returns and keeps: each call makes its own.

The oracle is the function in eager mode; an object is compared by everything that is in it.
"""

import collections
import dataclasses
import types
import weakref

import pytest
import torch

import funcaot
from funcaot.errors import UnsupportedError


@dataclasses.dataclass
class Record:
    x: torch.Tensor
    rest: object = None


@dataclasses.dataclass(frozen=True)
class Frozen:
    x: torch.Tensor
    rest: object = None


class Slotted:
    __slots__ = ("rest", "x")

    def __init__(self, x, rest=None):
        self.x, self.rest = x, rest


class Output(collections.OrderedDict):
    """Like the outputs of transformers."""

    def __init__(self, x, rest=None):
        super().__init__(x=x, rest=rest)
        self.x = x

    def __setitem__(self, key, value):
        if key in self:
            raise TypeError("read only")
        super().__setitem__(key, value)


class Row(list):
    def __init__(self, x, rest=None):
        super().__init__([x])
        self.rest = rest


class Pair(tuple):
    def __new__(cls, x, rest=None):
        made = tuple.__new__(cls, (x, rest))
        made.note = x * 2
        return made

    def __len__(self):
        raise NotImplementedError


class Layer:
    def __init__(self):
        self.keys = None


class Cache:
    """Like transformers' caches."""

    def __init__(self, x, rest=None):
        self.layers = [Layer(), Layer()]
        self.layers[0].keys = x
        self.empty, self.rest = self.layers[1], rest
        self.owner = weakref.ref(self)


KINDS = [
    Record,
    Frozen,
    Slotted,
    Output,
    Row,
    Pair,
    Cache,
    types.SimpleNamespace,
    collections.UserDict,
]


def make(kind, x, rest=None):
    if kind in (types.SimpleNamespace, collections.UserDict):
        return kind(x=x, rest=rest)
    return kind(x, rest)


def shown(value, seen):
    if isinstance(value, torch.Tensor):
        return value.tolist(), value.requires_grad
    if isinstance(value, int | float | str | None):
        return value
    if id(value) in seen:
        return f"again {[*seen].index(id(value))}"
    seen[id(value)] = value
    if isinstance(value, weakref.ref):
        return "weak", shown(value(), seen)
    parts = []
    if isinstance(value, dict):
        parts = [(key, shown(item, seen)) for key, item in dict.items(value)]
    elif isinstance(value, list | tuple):
        parts = [shown(item, seen) for item in type(value).__mro__[-2].__iter__(value)]
    own = dict(getattr(value, "__dict__", {}))
    own |= {
        n: getattr(value, n) for n in getattr(type(value), "__slots__", ()) if hasattr(value, n)
    }
    return type(value), parts, {name: shown(item, seen) for name, item in own.items()}


def compare(function, calls=3):
    compiled = funcaot.compile(function, backend="eager")
    made = []
    for index in range(calls):
        x = torch.full((2,), float(index), requires_grad=True)
        found, expected = compiled(x), function(x)
        assert shown(found, {}) == shown(expected, {})
        made.append(found)
    assert len({*map(id, made)}) == calls
    assert funcaot.report(compiled).cache_misses == 1


@pytest.mark.parametrize("kind", KINDS)
def test_an_object_is_returned(kind):
    compare(lambda x: make(kind, x * 2, "text"))


@pytest.mark.parametrize("inner", KINDS)
@pytest.mark.parametrize("outer", [Record, Output, Cache, dict])
def test_one_in_another(outer, inner):
    compare(
        lambda x: (
            make(outer, x * 2, [make(inner, x + 1), 3])
            if outer is not dict
            else {"q": make(inner, x)}
        )
    )


def test_one_object_in_two_places_is_one():
    def twice(x):
        record = Record(x * 2)
        return record, [record]

    compare(twice)


def test_an_object_that_holds_itself():
    def circle(x):
        record = Record(x * 2)
        record.rest = [record]
        return record

    compare(circle)


def test_a_distribution_is_returned():
    compiled = funcaot.compile(lambda x: torch.distributions.Normal(x, x.exp()), backend="eager")
    for value in (0.0, 1.0):
        x = torch.full((2,), value)
        found, expected = compiled(x), torch.distributions.Normal(x, x.exp())
        assert torch.equal(found.log_prob(x + 1), expected.log_prob(x + 1))


def test_no_code_of_a_class_runs_when_it_is_made_again():
    made = []

    class Counted:
        def __init__(self, x):
            made.append(1)
            self.x = x

        def __setattr__(self, name, value):
            made.append(name)
            object.__setattr__(self, name, value)

    compiled = funcaot.compile(lambda x: Counted(x * 2), backend="eager")
    compiled(torch.ones(2))
    before = len(made)
    assert torch.equal(compiled(torch.full((2,), 3.0)).x, torch.full((2,), 6.0))
    assert len(made) == before


def test_gradients_go_through():
    compiled = funcaot.compile(lambda x: Record(x.pow(3), Output(x.pow(2))), backend="eager")
    x = torch.tensor([1.0, 2.0], requires_grad=True)
    out = compiled(x)
    (gradient,) = torch.autograd.grad(out.x.sum() + out.rest["x"].sum(), x, create_graph=True)
    torch.testing.assert_close(gradient, 3 * x**2 + 2 * x)
    (second,) = torch.autograd.grad(gradient.sum(), x)
    torch.testing.assert_close(second, 6 * x.detach() + 2)


class Keeping(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.last = None

    def forward(self, x):
        self.last = Record(x * 2)
        return self.last, x + 1


def test_one_that_is_kept_and_returned_is_one_object():
    module = Keeping()
    compiled = funcaot.compile(module, backend="eager")
    for value in (1.0, 2.0, 3.0):
        found, _ = compiled(torch.full((2,), value))
        assert found is module.last
        assert torch.equal(found.x, torch.full((2,), 2 * value))


def test_what_was_there_before_is_returned_itself():
    settings = Record(torch.ones(2))
    compiled = funcaot.compile(lambda x: (settings, Record(x)), backend="eager")
    assert compiled(torch.zeros(2))[0] is settings


@pytest.mark.parametrize(
    "function",
    [lambda x: {"q": (y for y in [x])}, lambda x: Record({x: 1})],
    ids=["a generator", "a tensor as a key"],
)
def test_refused(function):
    with pytest.raises(UnsupportedError, match="lambda_"):
        funcaot.compile(function, backend="eager")(torch.ones(2))
