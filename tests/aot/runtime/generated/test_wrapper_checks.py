"""Generated calls on wrappers: they serve what they were made for, and nothing else."""

import pytest
import torch
from torch.testing._internal.two_tensor import TwoTensor

import funcaot
from funcaot.aot.runtime.entry import Entry
from tests.aot.subclasses.kinds import Factor, made, same, two


def function(x, y):
    return (x * y).sin()


def arguments():
    return two(0, 3, 4, grad=False), made(1, 3, 4, grad=False)


def changed_inside(change):
    x, y = arguments()
    change(x)
    return x, y


def marked():
    x = two(0, 3, 4, grad=False)
    x._is_buffer = True
    return x, made(1, 3, 4, grad=False)


class Other(TwoTensor):
    @staticmethod
    def __tensor_unflatten__(inner, context, size, stride):
        return Other(inner["a"], inner["b"], size, stride)


def twice():
    part = made(0, 3, 4, grad=False)
    return TwoTensor(part, part), made(1, 3, 4, grad=False)


def with_part():
    x = two(0, 3, 4, grad=False)
    return x, x.a


OTHERS = {
    "it requires grad": lambda: (two(0, 3, 4), made(1, 3, 4, grad=False)),
    "it is no leaf": lambda: (two(0, 3, 4) * 1, made(1, 3, 4, grad=False)),
    "other sizes": lambda: (two(0, 2, 4, grad=False), made(1, 2, 4, grad=False)),
    "other strides": lambda: (two(0, 4, 3, grad=False).t(), made(1, 3, 4, grad=False)),
    "another dtype": lambda: (two(0, 3, 4, grad=False).double(), made(1, 3, 4, grad=False)),
    "a class derived from it": lambda: (
        Other(*two(0, 3, 4, grad=False).__dict__.values()),
        made(1, 3, 4, grad=False),
    ),
    "a part requires grad": lambda: changed_inside(lambda x: x.a.requires_grad_()),
    "a part is a wrapper": lambda: (
        TwoTensor(two(0, 3, 4, grad=False), two(3, 3, 4, grad=False)),
        made(1, 3, 4, grad=False),
    ),
    "marked as a buffer": marked,
    "a plain tensor": lambda: (made(0, 3, 4, grad=False), made(1, 3, 4, grad=False)),
    "one tensor twice": twice,
    "a part is an argument, too": with_part,
}


@pytest.fixture
def general(monkeypatch):
    """Counts calls that look for their entry."""
    counted, fits = [], Entry.fits
    monkeypatch.setattr(Entry, "fits", lambda *a: (counted.append(a[0]), fits(*a))[1])
    return counted


def test_the_third_call_finds_its_program_at_once(general):
    compiled = funcaot.compile(function, backend="eager")
    for _ in range(2):
        compiled(*arguments())
    general.clear()
    for _ in range(3):
        same(compiled(*arguments()), function(*arguments()))
    assert not general
    assert len(compiled.entries) == 1


@pytest.mark.parametrize("grad_mode", [True, False])
@pytest.mark.parametrize("what", OTHERS)
def test_another_call_is_another_program(what, grad_mode):
    compiled = funcaot.compile(function, backend="eager")
    for make in (arguments, OTHERS[what], arguments, OTHERS[what]):
        found, wanted = make(), make()
        with torch.set_grad_enabled(grad_mode):
            same(compiled(*found), function(*wanted))
    assert len(compiled.entries) == 2


def test_metadata_by_value_and_type():
    def scaled(x):
        return x * x.factor

    compiled = funcaot.compile(scaled, backend="eager")
    for _ in range(2):
        for number in (1, 1.0, True, 2, 0.0, -0.0):
            same(compiled(Factor(torch.ones(3), number)), scaled(Factor(torch.ones(3), number)))
    assert len(compiled.entries) == 6


def test_closed_over():
    weights = [two(3, 3, 4, grad=False), two(5, 3, 4)]

    def weighted(x):
        return x * holder[0]

    holder = [weights[0]]
    compiled = funcaot.compile(weighted, backend="eager")
    for _ in range(3):
        for weight in weights:
            holder[0] = weight
            same(compiled(torch.ones(3, 4)), weighted(torch.ones(3, 4)))
    assert len(compiled.entries) == 2


def test_metadata_that_are_objects_with_state():
    class Settings:
        def __init__(self, number):
            self.number = number

        def __eq__(self, other):
            return self.number == other.number

        __hash__ = None

    settings = Settings(2)
    compiled = funcaot.compile(lambda x: x * x.factor.number, backend="eager")
    for number in (2, 2, 3, 3, 2):
        settings.number = number
        result = compiled(Factor(torch.ones(3), settings))
        torch.testing.assert_close(result.inner, torch.full((3,), float(number)))
    assert len(compiled.entries) == 2
