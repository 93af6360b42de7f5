"""What only an object's own value or slots say is part of a file: another value is a miss."""

import sys
import types

import pytest
import torch

import funcaot
from tests.aot.saved.reloading import is_loaded, misses

IMPORTS = """
import argparse, collections, dataclasses, fractions, logging, pathlib, statistics, string, typing
import uuid
class Whole(int): pass
class Real(float): pass
class Text(str): pass
class Row(bytes): pass
class Share(fractions.Fraction): pass
class Named(string.Template): pass
class Key:
    def __init__(self, number):
        self.number = number
    def __hash__(self):
        return 1
    def __eq__(self, other):
        return self.number == other.number
"""
WORLDS = {
    "int of a class": ("Whole({})", "2", "3", "int(held)"),
    "float of a class": ("[Real({})]", "2", "3", "held[0]"),
    "str of a class": ("Text({})", "'ab'", "'abc'", "len(held)"),
    "bytes of a class": ("Row({})", "b'ab'", "b'abc'", "len(held)"),
    "fraction": ("fractions.Fraction(1, {})", "2", "4", "float(held)"),
    "fraction as key": ("{{fractions.Fraction(1, {}): 1}}", "2", "4", "float([*held][0])"),
    "fraction of a class": ("Share(1, {})", "2", "4", "float(held)"),
    "path": ("pathlib.Path({})", "'a'", "'ab'", "len(str(held))"),
    "uuid": ("uuid.UUID(int={})", "2", "3", "held.int"),
    "distribution": ("statistics.NormalDist({})", "2.0", "3.0", "held.mean"),
    "template of a class": ("Named({})", "'a$b'", "'ab$b'", "len(held.substitute(b=1))"),
    "nested namespace": (
        "argparse.Namespace(a={{'b': [{}]}})", "2.0", "3.0", "vars(held)['a']['b'][0]",
    ),
    "key with an equality": ("{{Key({}): 3.0}}", "2.0", "4.0", "held.get(Key(2.0), 5.0)"),
    "type in brackets": ("typing.Optional[{}]", "int", "float", "(1 + (int in held.__args__))"),
    "metadata of a field": (
        "0\n@dataclasses.dataclass\nclass held:\n  a: int = dataclasses.field(metadata={{1: {}}})",
        "2.0", "3.0", "dataclasses.fields(held)[0].metadata[1]",
    ),
    "level of a logger": (
        "logging.getLogger('tests_held.inner'); logging.getLogger('tests_held').setLevel({})",
        "10", "20", "(1 + held.isEnabledFor(15))",
    ),
}  # fmt: skip


@pytest.fixture
def world(monkeypatch):
    """Makes a function that multiplies with what is read of an object of its module."""

    def make(held, read):
        module = types.ModuleType("module_with_something_held")
        monkeypatch.setitem(sys.modules, module.__name__, module)
        source = f"{IMPORTS}\nheld = {held}\ndef target(x):\n    return x * {read}\n"
        exec(source, vars(module))
        return module.target

    return make


@pytest.mark.parametrize("name", WORLDS)
def test_another_value_is_a_miss(name, world, tmp_path):
    held, before, after, read = WORLDS[name]
    path, x = tmp_path / "programs", torch.ones(2)
    compiled = funcaot.compile(world(held.format(before), read), backend="eager")
    compiled(x)
    saved = compiled.save(path)
    assert saved.programs == 1, str(saved)
    for value, hits in ((before, True), (after, False)):
        function = world(held.format(value), read)
        again = funcaot.compile(function, backend="eager", artifacts=path)
        torch.testing.assert_close(again(x), function(x))
        assert is_loaded(again) == hits
        assert misses(again) == (not hits)
