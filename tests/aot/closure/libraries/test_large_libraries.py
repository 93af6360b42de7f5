"""What makes a walk go through a whole library: hooks of classes, builtins, short texts in code."""

import builtins
import sys
import types

import pytest
import torch

import funcaot
from funcaot.aot.closure import children
from funcaot.aot.closure.environment import Environment, Place
from funcaot.aot.closure.named.code_names import names_of
from funcaot.aot.closure.named.fragments import Fragments
from funcaot.aot.closure.waiting import Waiting


class OfSuper:
    def __getattribute__(self, name):
        return 2.0 if name == "scale" else super().__getattribute__(name)


class OfObject:
    def __getattribute__(self, name):
        return 2.0 if name == "scale" else object.__getattribute__(self, name)


class OfOthers:
    def __getattribute__(self, name):
        return object.__getattribute__(OfObject, name)


def waiting():
    pass


@pytest.mark.parametrize(("kind", "waits"), [(OfSuper, True), (OfObject, True), (OfOthers, False)])
def test_a_hook_that_gets_attributes_of_its_own_object_lets_others_wait(kind, waits):
    functions = Waiting()
    assert functions.waits(waiting)
    code = kind.__getattribute__.__code__
    started = functions.started(code, names_of(code).used, globals())
    assert started == ([] if waits else [waiting])
    assert functions.waits(waiting) is waits


@pytest.mark.parametrize("kind", [OfSuper, OfObject])
def test_what_such_a_hook_gives_is_compared(kind, monkeypatch):
    thing = kind()
    thing.shift = 1.0
    compiled = funcaot.compile(lambda x: x * thing.scale + thing.shift, backend="eager")
    x = torch.ones(2)
    assert torch.equal(compiled(x), torch.full((2,), 3.0))
    thing.shift = 2.0
    assert torch.equal(compiled(x), torch.full((2,), 4.0))


def test_all_globals_lead_to_the_builtins():
    found = Environment()
    found.names.is_dynamic = True
    found.identities.append((Place(id(vars(builtins)), "{parent}['getattr']"), getattr))
    assert not children.reads_unseen(found)
    found.names.of_users.add("__builtins__")
    assert children.reads_unseen(found)


def test_a_builtin_by_another_name_is_compared_by_all():
    found = Environment()
    found.identities.append((Place(id(found), "{parent}['get']", ""), getattr))
    assert children.reads_unseen(found)


def get(thing, name):
    return getattr(thing, "_" + name)


def test_an_underscore_in_code_names_no_half_of_a_library(monkeypatch):
    library = types.ModuleType("library_of_settings")
    vars(library).update({f"_setting_{i}": float(i) for i in range(100)})
    monkeypatch.setitem(sys.modules, library.__name__, library)
    monkeypatch.setitem(globals(), "library", library)

    def function(x):
        return x * get(library, "setting_3")

    compiled = funcaot.compile(function, backend="eager")
    assert torch.equal(compiled(torch.ones(2)), torch.full((2,), 3.0))
    assert len(funcaot.report(compiled).entries[0].checks) < 60
    library._setting_3 = 5.0
    assert torch.equal(compiled(torch.ones(2)), torch.full((2,), 5.0))


def test_parts_of_names_that_come_later():
    parts = Fragments()
    parts.add(["scale", "_"])
    assert parts.name("my_scale") and not parts.name("_shift")
    assert parts.are_in("_shift") and not parts.are_in("shift")
    parts.add(["shift", "scale"])
    assert parts.name("_shift") and parts.name("my_scale") and not parts.name("_other")
    assert [*parts] == ["scale", "_", "shift"] and parts
