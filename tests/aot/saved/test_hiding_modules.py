"""A user's module that is called like one of Python's library is the user's, also in files."""

import sys
import types

import pytest
import torch

import funcaot
from tests.aot.saved.reloading import is_loaded, misses

SOURCE = """
import torch
FACTOR = 2.0
SHIFTS = [1.0]
def scaled(x):
    return x * FACTOR + SHIFTS[0]
class Network(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.rates = {"a": 0.5}
    def forward(self, x):
        return scaled(x.sin()) * self.rates["a"]
"""
NAME = "graphlib.model_of_tests"


def world(tmp_path, monkeypatch, source):
    """The user's package ``graphlib``, as one process imports it."""
    for name in ("graphlib", NAME):
        made = types.ModuleType(name)
        made.__file__ = str(tmp_path / f"{name}.py")
        monkeypatch.setitem(sys.modules, name, made)
    exec(source, vars(made))
    return made


def equal(compiled, function):
    x = torch.arange(3.0)
    return torch.equal(compiled(x), function(x))


@pytest.mark.parametrize(
    "change",
    [
        lambda module, network: module.SHIFTS.__setitem__(0, 7.0),
        lambda module, network: setattr(module, "FACTOR", 3.0),
        lambda module, network: network.rates.update(a=9.0),
    ],
    ids=["list", "global", "dictionary"],
)
def test_a_change_between_calls(change, tmp_path, monkeypatch):
    module = world(tmp_path, monkeypatch, SOURCE)
    network = module.Network()
    compiled = funcaot.compile(network, backend="eager")
    assert equal(compiled, network)
    change(module, network)
    assert equal(compiled, network)


EDITS = {
    "nothing": ("", ""),
    "a list": ("[1.0]", "[4.0]"),
    "a function": ("x * FACTOR", "x / FACTOR"),
    "a dictionary": ('"a": 0.5', '"a": 0.75'),
}


@pytest.mark.parametrize("edit", EDITS)
def test_an_edit_between_processes(edit, tmp_path, monkeypatch):
    path = tmp_path / "programs"
    network = world(tmp_path, monkeypatch, SOURCE).Network()
    first = funcaot.compile(network, backend="eager")
    assert equal(first, network)
    assert first.save(path).programs == 1
    edited = world(tmp_path, monkeypatch, SOURCE.replace(*EDITS[edit])).Network()
    compiled = funcaot.compile(edited, backend="eager", artifacts=path)
    assert equal(compiled, edited)
    assert is_loaded(compiled) == (edit == "nothing") == (not misses(compiled))
