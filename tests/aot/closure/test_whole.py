"""Methods that read all attributes of their own objects make nobody else's be compared."""

import dataclasses
import pickle
import sys
import types
import warnings
from dataclasses import fields

import pytest
import torch

import funcaot
from funcaot.aot.closure.named.whole import asks_itself


class Owner:
    limit = 2.0

    def __init__(self):
        self.scale_a = 2.0

    def get(self, name):
        return self.__dict__.get("scale_" + name, 1.0)

    def any_of(self, names):
        return max(self.__dict__.get("scale_" + name, 1.0) for name in names)

    @property
    def largest(self):
        return max(self.__dict__.values())

    def copied(self):
        copied = self.__class__.__new__(self.__class__)
        for key, value in self.__dict__.items():
            copied.__dict__[key] = value
        copied.__dict__["scale_c"] = 1.0
        return copied

    def of_other(self, other):
        return other.__dict__

    def item_of_other(self, other):
        return other.__dict__["scale_a"]

    def counted_in_other(self, other):
        other.__dict__["scale_a"] += 1.0

    def of_another_self(self, others):
        return [(lambda self: self.__dict__)(other) for other in others]

    def replaced(self, other):
        self = other
        return self.__dict__

    @staticmethod
    def of_first(thing):
        return thing.__dict__

    def listed(self):
        return vars(self)


class Hooked:
    _rate = 2.0

    def __init__(self):
        self._base = 3.0

    def __getattribute__(self, key):
        name = key if key.startswith("_") else "_" + key
        return super().__getattribute__(name)


class Mapped:
    """As configurations of transformers do it: other names lead to attributes, read and set."""

    names = {"width": "size"}

    def __init__(self):
        self.size = 2.0

    def __setattr__(self, key, value):
        if key in super().__getattribute__("names"):
            key = super().__getattribute__("names")[key]
        super().__setattr__(key, value)

    def __getattribute__(self, key):
        return super().__getattribute__(super().__getattribute__("names").get(key, key))


class OfObject:
    def __getattribute__(self, key):
        return object.__getattribute__(self, key)


@dataclasses.dataclass
class Output:
    scale: float = 2.0

    def total(self):
        return sum(self.__dict__[field.name] for field in fields(self))


CONFINED = {
    Owner.get: Owner,
    Owner.any_of: Owner,
    Owner.largest.fget: Owner,
    Owner.copied: Owner,
    Owner.of_other: None,
    Owner.item_of_other: None,
    Owner.counted_in_other: None,
    Owner.of_another_self: None,
    Owner.replaced: None,
    Owner.of_first: None,
    Owner.listed: None,
    Hooked.__getattribute__: Hooked,
    Mapped.__setattr__: Mapped,
    Mapped.__getattribute__: Mapped,
    OfObject.__getattribute__: None,
    Output.total: Output,
}


@pytest.mark.parametrize("method", CONFINED, ids=lambda method: method.__qualname__)
def test_which_methods_ask_only_themselves(method):
    assert asks_itself(method.__code__, globals()) is CONFINED[method]


OWNER, HOOKED, OUTPUT, MAPPED = Owner(), Hooked(), Output(), Mapped()


class Registry:
    def __init__(self):
        self.entries = {str(index): [index] for index in range(300)}
        self.used = 1.0


REGISTRY = Registry()


def by_dictionary(x):
    return x * OWNER.get("a") * REGISTRY.used


def by_names(x):
    return x * OWNER.any_of("ab") * REGISTRY.used


def by_property(x):
    return x * OWNER.largest * REGISTRY.used


def by_copy(x):
    return x * OWNER.copied().get("a") * REGISTRY.used


def by_hook(x):
    return x * HOOKED.rate * HOOKED.base * REGISTRY.used


def by_fields(x):
    return x * OUTPUT.total() * REGISTRY.used


def by_setting(x):
    found = x * MAPPED.width * REGISTRY.used
    MAPPED.height = 3.0
    return found * MAPPED.height


CHANGES = [
    lambda: setattr(OWNER, "scale_a", 5.0),
    lambda: setattr(OWNER, "scale_b", 7.0),
    lambda: vars(OWNER).pop("scale_a"),
    lambda: setattr(Hooked, "_rate", 5.0),
    lambda: setattr(HOOKED, "_rate", 6.0),
    lambda: setattr(HOOKED, "_base", 4.0),
    lambda: setattr(OUTPUT, "scale", 8.0),
    lambda: setattr(MAPPED, "width", 9.0),
]


@pytest.mark.parametrize(
    "function",
    [by_dictionary, by_names, by_property, by_copy, by_hook, by_fields, by_setting],
    ids=lambda f: f.__name__,
)
def test_their_objects_are_compared_and_no_others(function, monkeypatch):
    kinds = {"OWNER": Owner, "HOOKED": Hooked, "OUTPUT": Output, "MAPPED": Mapped}
    for name, made in ((name, kind()) for name, kind in kinds.items()):
        monkeypatch.setitem(globals(), name, made)
    monkeypatch.setattr(Hooked, "_rate", 2.0)
    compiled = funcaot.compile(function, backend="eager")
    x = torch.ones(2)
    compiled(x)
    checks = funcaot.report(compiled).entries[0].checks
    assert len(checks) < 60
    assert not any("entries" in check for check in checks)
    for change in CHANGES:
        change()
        assert torch.equal(compiled(x), function(x))


class Kept:
    limit = 2.0

    def __init__(self):
        self.first = 1.0


class KeptSlots:
    __slots__ = ("first", "second")

    def __init__(self):
        self.first = 1.0


KEPT, SLOTS = Kept(), KeptSlots()


def by_pickle(x):
    return x * len(pickle.dumps((KEPT, SLOTS))) * torch.nn.init.calculate_gain("tanh")


def test_what_is_pickled_is_compared_and_classes_are_not():
    compiled = funcaot.compile(by_pickle, backend="eager")
    x = torch.ones(2)
    compiled(x)
    checks = funcaot.report(compiled).entries[0].checks
    assert not any("limit" in check for check in checks)
    for change in (
        lambda: setattr(KEPT, "first", 10**40),
        lambda: setattr(KEPT, "another", 1),
        lambda: setattr(SLOTS, "first", "text"),
        lambda: setattr(SLOTS, "second", "text"),
    ):
        change()
        assert torch.equal(compiled(x), by_pickle(x))


def test_a_warning_changes_nothing_in_a_module_that_is_read_as_a_whole(monkeypatch):
    module = types.ModuleType("warning_module")
    code = "import warnings\ndef scale():\n    warnings.warn('often')\n    return 2.0\n"
    exec(code, vars(module))
    monkeypatch.setitem(sys.modules, module.__name__, module)
    compiled = funcaot.compile(lambda x: x * vars(module)["scale"](), backend="eager")
    for _ in range(4):
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            assert compiled(torch.ones(2)).tolist() == [2, 2]
    assert len(funcaot.report(compiled).entries) == 1
