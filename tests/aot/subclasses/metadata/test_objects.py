"""Objects among the metadata of wrappers: which are alike, and whose object a result has.

The oracle is the function itself, called with the same tensors.
"""

import collections
import dataclasses
import datetime
import decimal

import numpy as np
import pytest
import torch

import funcaot
from funcaot.errors import UnsupportedError
from tests.aot.subclasses.kinds import Factor, TwoTensor, made
from tests.hostile import COMPILER


class Settings:
    """Equal by its number alone, whatever its label."""

    def __init__(self, number, label=""):
        self.number, self.label = number, label

    def __eq__(self, other):
        return isinstance(other, Settings) and self.number == other.number

    def __hash__(self):
        return hash(self.number)


class Slots:
    __slots__ = ("label", "number")

    def __init__(self, number, label):
        self.number, self.label = number, label

    def __eq__(self, other):
        return self.number == other.number

    __hash__ = None


@dataclasses.dataclass(frozen=True)
class Record:
    number: object
    label: object = dataclasses.field(compare=False, default=None)


class Text(str):
    def __new__(cls, text, label):
        made = super().__new__(cls, text)
        made.label = label
        return made


DAY = datetime.datetime(2020, 1, 1)
OVERLOOKED = {
    "a field": (Settings(1, 2), Settings(1, 3)),
    "a type": (Settings(1), Settings(True)),
    "a slot": (Slots(1, 2), Slots(1, 3)),
    "a field that isn't compared": (Record(1, 2), Record(1, 3)),
    "a field of a field": (Record(Record(1, 1)), Record(Record(1, 2))),
    "a type in a list": (Record(1, [1]), Record(1, [True])),
    "a type in a set": ({1}, {1.0}),
    "a type in a frozen set": (frozenset([1]), frozenset([True])),
    "a type in a slice": (slice(1), slice(True)),
    "the order of a dictionary": ({"a": 1, "b": 2}, {"b": 2, "a": 1}),
    "a type in a dictionary": (collections.OrderedDict(a=1), collections.OrderedDict(a=True)),
    "digits": (decimal.Decimal("1.0"), decimal.Decimal("1.00")),
    "a sign": (np.float64(0.0), np.float64(-0.0)),
    "a kind of number": (np.zeros(2), np.zeros(2, dtype=int)),
    "a fold": (DAY, DAY.replace(fold=1)),
    "an attribute of a text": (Text("a", 1), Text("a", 2)),
    "a range": (range(0), range(1, 1)),
}


@pytest.mark.parametrize("what", OVERLOOKED)
def test_what_an_equality_overlooks_is_another_program(what):
    one, other = OVERLOOKED[what]
    compiled = funcaot.compile(lambda x: x * 2, backend=COMPILER)
    for value, count in ((one, 1), (other, 2), (one, 2), (other, 2)):
        assert compiled(Factor(torch.ones(3), value)).factor is value
        assert len(compiled.entries) == count


def test_a_field_that_an_equality_overlooks_is_read():
    def function(x):
        return x * len(x.factor.label)

    compiled = funcaot.compile(function, backend=COMPILER)
    settings = Settings(1, "abc")
    for label in ("a", "bb", "a", "ccc"):
        settings.label = label
        for each in (settings, Settings(1, label)):
            x = Factor(torch.ones(3), each)
            torch.testing.assert_close(compiled(x).inner, function(x).inner)
    assert len(compiled.entries) == 3


def test_arrays_and_what_compares_as_itself_stay_one_program():
    compiled = funcaot.compile(lambda x: x * 2, backend=COMPILER)
    for make in (lambda: np.array([float("nan"), 1]), lambda: Slots(1, [2])):
        for _ in range(2):
            compiled(Factor(torch.ones(3), make()))
    assert len(compiled.entries) == 2


class Labelled(torch.Tensor):
    """Carries a dictionary along, and makes a list for each result."""

    @staticmethod
    def __new__(cls, inner, labels, seen):
        return torch.Tensor._make_wrapper_subclass(
            cls, inner.shape, strides=inner.stride(), dtype=inner.dtype
        )

    def __init__(self, inner, labels, seen):
        self.inner, self.labels, self.seen = inner, labels, seen

    __repr__ = object.__repr__

    def __tensor_flatten__(self):
        return ["inner"], (self.labels, self.seen)

    @staticmethod
    def __tensor_unflatten__(inner, context, size, stride):
        return Labelled(inner["inner"], *context)

    @classmethod
    def __torch_dispatch__(cls, func, types, args=(), kwargs=None):
        plain = [each.inner if isinstance(each, Labelled) else each for each in args]
        first = next(each for each in args if isinstance(each, Labelled))
        result = func(*plain, **(kwargs or {}))
        seen = [*first.seen, func._schema.name]
        if isinstance(result, torch.Tensor):
            return Labelled(result, first.labels, seen)
        return tuple(Labelled(each, first.labels, seen) for each in result)


@pytest.mark.parametrize("backend", ["hostile", pytest.param("inductor", marks=pytest.mark.slow)])
def test_results_have_the_objects_of_their_call(backend):
    def function(x, y):
        pair = (x * 2, (y + x).sin())
        return [*pair, Factor(pair[0], y.labels), x.inner * 2]

    compiled = funcaot.compile(function, backend=COMPILER if backend == "hostile" else backend)
    earlier = []
    for call in range(3):
        x = Labelled(made(call, 3, grad=False), {"name": "x"}, [])
        y = Labelled(made(call + 5, 3, grad=False), {"name": "y"}, ["given"])
        found, wanted = compiled(x, y), function(x, y)
        for one, other in zip(found[:2], wanted[:2], strict=True):
            assert one.labels is other.labels
            assert one.seen == other.seen
            torch.testing.assert_close(one.inner, other.inner)
            assert all(one.seen is not each.seen for each in earlier)
            one.seen.append("written to")
        assert found[2].factor is wanted[2].factor is y.labels
        assert found[2].inner.labels is x.labels
        earlier += found[:2]
    assert len(compiled.entries) == 1


def test_one_new_object_of_two_results():
    def function(x):
        return (x * 2).sort()

    compiled = funcaot.compile(function, backend=COMPILER)
    for call in range(3):
        x = Labelled(made(call, 4, grad=False), {}, [])
        for each in (compiled, function):
            one, other = each(x)
            assert one.labels is other.labels is x.labels
            assert one.seen is other.seen


def test_wrappers_inside_of_wrappers_bring_theirs():
    compiled = funcaot.compile(lambda x: (x * 2, x.a + 1), backend=COMPILER)
    for call in range(3):
        parts = [Factor(made(call, 3, grad=False), Settings(2)) for _ in range(2)]
        whole, part = compiled(TwoTensor(*parts))
        assert [whole.a.factor, whole.b.factor] == [each.factor for each in parts]
        assert whole.a.factor is part.factor is parts[0].factor
        assert whole.b.factor is parts[1].factor


def test_objects_of_gradients():
    def function(x, y):
        return (x.sin() * y).exp()

    compiled = funcaot.compile(function, backend=COMPILER)
    for call in range(3):
        settings = Settings(2)
        for each in (compiled, function):
            x = Factor(made(call, 3, grad=False), settings).requires_grad_()
            y = Factor(made(call, 3, grad=False), settings).requires_grad_()
            result = each(x, y).sum()
            first = torch.autograd.grad(result, (x, y), create_graph=True)
            second = torch.autograd.grad(first[0].sum(), (x, y))
            assert all(g.factor is settings for g in (*first, *second))
    assert len(compiled.entries) == 1


class Scaled(Factor):
    """Its class reads its settings when it computes."""

    @staticmethod
    def __tensor_unflatten__(inner, context, size, stride):
        return Scaled(inner["inner"], context["factor"])

    @classmethod
    def __torch_dispatch__(cls, func, types, args=(), kwargs=None):
        settings = next(each.factor for each in reversed(args) if isinstance(each, Scaled))
        result = func(*(each.inner if isinstance(each, Scaled) else each for each in args))
        return Scaled(result * settings.number, settings)


def test_an_object_that_is_changed_before_the_backward():
    compiled = funcaot.compile(lambda x: x.sin(), backend=COMPILER)

    def gradient(function, settings):
        x = Scaled(torch.ones(2), settings).requires_grad_()
        return torch.autograd.grad(function(x), x, torch.ones(2))[0].inner

    first = Slots(2, "")
    compiled(Scaled(torch.ones(2), first).requires_grad_())
    first.number = 5
    with pytest.raises(UnsupportedError, match=r"(?s)was changed after.*Instead"):
        gradient(compiled, Slots(2, ""))
    first.number = 2
    for number in (2, 5, 2, 3):
        found, wanted = (
            gradient(each, Slots(number, "")) for each in (compiled, compiled.function)
        )
        torch.testing.assert_close(found, wanted)
