"""Classes that are touched between calls: what lookup finds is compared then, and not otherwise."""

import itertools

import pytest
import torch

import funcaot
from funcaot.aot.reader import reader_untouched


class Meta(type):
    pass


def family():
    """A metaclass, classes that derive from one another, and a mixin."""

    class Kind(Meta):
        pass

    class Base(Origin, metaclass=Kind):
        factor = 2.0

        def scaled(self, x):
            return x * self.factor

        def shifted(self, x):
            return self.scaled(x) + 1

    class Mixin(Origin):
        pass

    class Middle(Mixin, Base):
        def shifted(self, x):
            return super().shifted(x) * 3

    class Own(Middle):
        pass

    return {"meta": Kind, "base": Base, "mixin": Mixin, "middle": Middle, "own": Own}


def set_later(name, value):
    def touch(kind):
        setattr(kind, name, value)

    return touch


class Origin:
    """A base, since that of a class whose only one is ``object`` can't be changed."""


class Late(Origin):
    """Where lookup goes on once it is a base."""

    def scaled(self, x):
        return x * 7


def other_bases(kind):
    kind.__bases__ = (Late, *(base for base in kind.__bases__ if base is not Origin))


TOUCHES = {
    "method": set_later("scaled", lambda self, x: x * 5),
    "method that calls the next": set_later("shifted", lambda self, x: self.scaled(x) - 4),
    "setting": set_later("factor", 9.0),
    "unread": set_later("nobody_reads_it", 1),
    "getattr": set_later("__getattr__", lambda self, name: 11.0),
    "getattribute": set_later(
        "__getattribute__",
        lambda self, name: 13.0 if name == "factor" else object.__getattribute__(self, name),
    ),
    "property": set_later("factor", property(lambda self: 17.0)),
    "bases": other_bases,
}


def use(held, x):
    return held.shifted(x).sin()


def value(function, *args):
    try:
        result = function(*args)
    except Exception as error:  # noqa: BLE001 - whatever eager mode raises
        return type(error)
    return result.detach()


def agree(compiled, held, x):
    expected, found = value(use, held, x), value(compiled, held, x)
    if isinstance(expected, type):
        assert found is expected
    else:
        torch.testing.assert_close(found, expected)


CASES = [*itertools.product(("base", "mixin", "middle", "own"), TOUCHES)]


@pytest.mark.parametrize(("place", "name"), CASES)
def test_touched(place, name):
    kinds = family()
    held, x = kinds["own"](), torch.randn(3)
    compiled = funcaot.compile(use, backend="eager")
    for _ in range(3):
        agree(compiled, held, x)
    kind = kinds[place]
    before, bases = dict(vars(kind)), kind.__bases__
    TOUCHES[name](kind)
    for _ in range(3):
        agree(compiled, held, x)
    # As it was before, by other changes of the same dictionary.
    kind.__bases__ = bases
    for each in vars(kind).keys() - before.keys():
        delattr(kind, each)
    for each in ("scaled", "shifted", "factor"):
        if each in before:
            setattr(kind, each, before[each])
    for _ in range(3):
        agree(compiled, held, x)


@pytest.mark.parametrize("when", ["known", "unknown"])
def test_a_class_that_counts_its_calls(when, monkeypatch):
    """Its dictionary is touched by every call, and what lookup finds stays the same."""
    if when == "unknown":  # as where torch can't tell the version of a dictionary
        monkeypatch.setattr(reader_untouched, "dict_version", None)
    kinds = family()

    def counted(held, x):
        type(held).calls += 1
        return held.shifted(x)

    kinds["own"].calls = 0
    held, x = kinds["own"](), torch.randn(3)
    compiled = funcaot.compile(counted, backend="eager")
    for call in range(5):
        torch.testing.assert_close(compiled(held, x), (2 * x + 1) * 3)
        assert kinds["own"].calls == call + 1
    kinds["base"].scaled = lambda self, x: x * 5
    torch.testing.assert_close(compiled(held, x), (5 * x + 1) * 3)
    assert funcaot.report(compiled).cache_misses == 2


def test_a_metaclass_that_is_touched():
    kinds = family()

    def asks(kind, x):
        return x * getattr(kind, "weight", 2.0)

    compiled = funcaot.compile(asks, backend="eager")
    x = torch.randn(3)
    for _ in range(2):
        torch.testing.assert_close(compiled(kinds["own"], x), 2 * x)
    kinds["meta"].weight = 3.0
    for _ in range(2):
        torch.testing.assert_close(compiled(kinds["own"], x), 3 * x)
    del kinds["meta"].weight
    torch.testing.assert_close(compiled(kinds["own"], x), 2 * x)


def test_what_is_in_classes_is_compared_once(monkeypatch):
    """A call that finds no class touched looks into none of them."""
    kinds = family()
    held, x = kinds["own"](), torch.randn(3)
    compiled = funcaot.compile(use, backend="eager")
    compiled(held, x)
    compiled(held, x)
    made = []
    whole = reader_untouched._whole
    monkeypatch.setattr(reader_untouched, "_whole", lambda *args: made.append(1) or whole(*args))
    for _ in range(3):
        compiled(held, x)
    assert not made
    kinds["own"].nobody_reads_it = 1
    for _ in range(3):
        agree(compiled, held, x)
    assert made == [1]
