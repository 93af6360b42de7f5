"""Methods that read all attributes of their own objects make nobody else's be compared."""

import dataclasses
import pickle
import sys
import threading
import types
import warnings
from dataclasses import fields
from operator import attrgetter

import pytest
import torch
from torch.testing import assert_close

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
    Owner.listed: Owner,
    Hooked.__getattribute__: Hooked,
    Mapped.__setattr__: Mapped,
    Mapped.__getattribute__: Mapped,
    OfObject.__getattribute__: OfObject,
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


class Settings:
    def __init__(self):
        self.scale_a, self.vars = 2.0, 1.0


def largest_shown(x):
    return x * max(vars(SETTINGS).values())


def largest_local(x):
    scale, offset = 2.0, 1.0
    return x * max(value for name, value in vars().items() if name != "x") + offset * scale


def largest_of(x, things):
    return x * max(value for each in map(vars, things) for value in each.values())


def of_an_attribute(x):
    return x * SETTINGS.vars


SETTINGS = Settings()
SHOWN = {
    largest_shown: True,
    lambda x: largest_of(x, [SETTINGS]): True,
    largest_local: False,
    of_an_attribute: False,
}


@pytest.mark.parametrize("function", SHOWN)
def test_what_vars_shows(function):
    """An attribute that nothing names decides; other objects are read by name."""
    SETTINGS.__init__()
    compiled = funcaot.compile(function, backend="eager")
    x = torch.ones(2)
    for change in (
        lambda: None,
        lambda: setattr(SETTINGS, "scale_a", 5.0),
        lambda: setattr(SETTINGS, "unnamed", 7.0),
        lambda: delattr(SETTINGS, "unnamed"),
        lambda: setattr(SETTINGS, "vars", 9.0),
    ):
        change()
        assert_close(compiled(x), function(x))
    checks = [check for entry in compiled.entries for check in entry.forward.reader.checks]
    whole = [check for check in checks if check.startswith("the names of the attributes of")]
    assert bool(whole) is SHOWN[function]
    assert all("SETTINGS" in check for check in whole)


@pytest.mark.parametrize("kind", [Settings, Settings.__init__, types.ModuleType("shown")])
def test_vars_of_what_is_no_plain_object(kind):
    compiled = funcaot.compile(lambda x: x * len(vars(kind)), backend="eager")
    x = torch.ones(2)
    for change in (lambda: None, lambda: setattr(kind, "put_there", 1)):
        change()
        assert_close(compiled(x), x * len(vars(kind)))
    del kind.put_there
    assert_close(compiled(x), x * len(vars(kind)))


def test_names_come_from_what_vars_shows_of_a_proxy():
    class Shown:
        __dict__ = property(lambda self: vars(SETTINGS))

    shown = Shown()
    SETTINGS.__init__()
    compiled = funcaot.compile(lambda x: x * sum(vars(shown).values()), backend="eager")
    for value in (2.0, 5.0):
        SETTINGS.scale_a = value
        assert_close(compiled(torch.ones(2)), torch.ones(2) * (value + 1))


def test_vars_of_a_namespace():
    """It is read as a whole, and other objects by name."""
    space, other = types.SimpleNamespace(scale=2.0), Settings()
    compiled = funcaot.compile(
        lambda x: x * sum(vars(space).values()) + other.scale_a, backend="eager"
    )
    x = torch.ones(2)
    for scale in (2.0, 2.0, 3.0):
        space.scale = scale
        assert_close(compiled(x), x * scale + other.scale_a)
    space.more = 4.0
    assert_close(compiled(x), x * 7 + other.scale_a)
    checks = [check for entry in compiled.entries for check in entry.forward.reader.checks]
    assert not any("other" in check and "names of the attributes" in check for check in checks)


class InThread(threading.local):
    pass


def with_texts():
    """Things of several kinds that hold ``scale``, and functions that ask by this text."""
    plain, kind, local, own = Owner(), type("Kind", (), {}), threading.local(), InThread()
    module = types.ModuleType("holding_module")
    things = {"plain": plain, "kind": kind, "local": local, "own": own, "module": module}

    def got(x):
        return x * sum(thing.__dict__.get("scale", 4.0) for thing in things.values())

    def item(x):
        return x * plain.__dict__["scale_a"] * plain.__dict__.get("sca" + "le_b", 4.0)

    def made(x, start="sca"):
        first = plain.__dict__.get("{}le_a".format(start), 1.0)  # noqa: UP032
        second = plain.__dict__.get("%sle_b" % start, 4.0)  # noqa: UP031
        return x * first * second

    def of_class(x):
        return x * kind.__dict__.get("scale", 4.0) * REGISTRY.used

    def of_local(x):
        return x * local.__dict__.get("scale", 4.0) * own.__dict__.get("scale", 3.0)

    def of_module(x):
        return x * module.__dict__.get("scale", 4.0) * REGISTRY.used

    return things, [got, item, of_class, of_local, of_module, made]


@pytest.mark.parametrize("index", range(6))
def test_what_is_asked_by_a_text_of_the_code(index):
    things, functions = with_texts()
    function, x = functions[index], torch.ones(2)
    compiled = funcaot.compile(function, backend="eager")
    for change in (
        lambda thing: None,
        lambda thing: setattr(thing, "scale", 2.0),
        lambda thing: setattr(thing, "scale", 5.0),
        lambda thing: setattr(thing, "scale_b", 7.0),
        lambda thing: delattr(thing, "scale"),
    ):
        for thing in things.values():
            change(thing)
            assert_close(compiled(x), function(x))
    checks = compiled.entries[0].forward.reader.checks
    assert len(checks) < 90
    assert not any("entries" in check for check in checks)


class Family:
    """Objects that hold others, and functions that ask whether they have something."""

    def __init__(self):
        self.child, self.kinds, self.scale = Owner(), {"plain": Owner()}, 2.0


def by_membership():
    family = Family()

    def function(x):
        first = 3.0 if "scale" in family.child.__dict__ else 1.0
        return x * first * (5.0 if "scale" not in family.kinds["plain"].__dict__ else 1.0)

    return function, (family.child, family.kinds["plain"])


def by_getter():
    family = Family()

    def function(x, name="scale"):
        got = attrgetter("child." + name + "_a")(family)
        return x * got * sum(attrgetter(name, "scale")(family)) * getattr(family, "more", 1.0)

    return function, (family, family.child)


def by_expression():
    family, name = Family(), "scale"
    found = [lambda: "scale", lambda: name]

    def function(x):
        return x * sum(1.0 for get in found if get() in family.child.__dict__)

    return function, (family.child,)


@pytest.mark.parametrize("make", [by_membership, by_getter, by_expression])
def test_what_is_looked_for_by_name(make):
    """Membership, and names given to ``attrgetter``, in place of all attributes of all objects."""
    function, things = make()
    compiled, x = funcaot.compile(function, backend="eager"), torch.ones(2)
    for change in (
        lambda thing: None,
        lambda thing: setattr(thing, "scale", 3.0),
        lambda thing: setattr(thing, "scale_a", 5.0),
        lambda thing: setattr(thing, "more", 7.0),
        lambda thing: delattr(thing, "more"),
    ):
        for thing in things:
            change(thing)
            assert_close(compiled(x), function(x))
    if make is not by_expression:
        reader = compiled.entries[0].forward.reader
        assert len(reader.checks) < 60
        assert not any("entries" in check for check in reader.checks)


def test_a_getter_is_a_class_to_code_that_asks():
    """Code sees something in its place, which is equal to it and knows its instances."""

    def asks(x):
        getter = attrgetter("a")
        kinds = (attrgetter | None) == (None | attrgetter), issubclass(type(getter), attrgetter)
        return x + 1, (isinstance(getter, attrgetter), *kinds, attrgetter.__name__)

    def compares(x):
        return x + 1, type(attrgetter("a")) is attrgetter

    for function in (asks, compares):
        assert funcaot.compile(function, backend="eager")(torch.ones(2))[1] == function(0)[1]
