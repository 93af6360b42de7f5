"""Sources that changed between two processes, in ways that no code object shows."""

import sys
import types

import pytest
import torch

import funcaot
from tests.aot.saved.reloading import is_loaded, misses

BASES = """
import torch
class Doubled: pass
class Plain: pass
class Owner({}):
    pass
owner = Owner()
def target(x):
    return x * 2 if isinstance(owner, Doubled) else x.sin()
"""
DECORATED = """
import torch
@torch.set_grad_enabled({})
def inner(x):
    return x * 3
def target(x):
    return inner(x) + x
"""
SOURCES = {
    "another base": (BASES, "Doubled", "Plain"),
    "another argument of a decorator": (DECORATED, "False", "True"),
}


@pytest.fixture
def world(monkeypatch):
    """Makes the function of a source, always in a module of the same name."""

    def make(source):
        module = types.ModuleType("a_module_that_changes")
        monkeypatch.setitem(sys.modules, module.__name__, module)
        exec(source, vars(module))
        return module.target

    return make


def shown(function):
    x = torch.ones(3, requires_grad=True)
    y = function(x)
    return y, torch.autograd.grad(y.sum(), x)


@pytest.mark.parametrize("case", SOURCES)
def test_a_change_of_the_source_is_a_miss(case, world, tmp_path):
    source, before, after = SOURCES[case]
    compiled = funcaot.compile(world(source.format(before)), backend="eager")
    shown(compiled)
    assert compiled.save(tmp_path / "programs").programs == 1
    again = funcaot.compile(
        world(source.format(before)), backend="eager", artifacts=tmp_path / "programs"
    )
    torch.testing.assert_close(shown(again), shown(world(source.format(before))))
    assert is_loaded(again)
    changed = world(source.format(after))
    other = funcaot.compile(changed, backend="eager", artifacts=tmp_path / "programs")
    torch.testing.assert_close(shown(other), shown(changed))
    assert misses(other) == 1


def test_a_missing_tensor_is_named_as_one_would_write_it(tmp_path):
    """A layer without the bias that it had where the program was saved."""

    def network(bias):
        return torch.nn.Sequential(torch.nn.Linear(2, 2, bias=bias), torch.nn.Tanh())

    path = tmp_path / "programs"
    compiled = funcaot.compile(network(bias=True), backend="eager")
    compiled(torch.ones(1, 2))
    compiled.save(path)
    again = funcaot.compile(network(bias=False), backend="eager", artifacts=path)
    again(torch.ones(1, 2))
    reason = funcaot.report(again).entries[0].reason
    assert reason.endswith("no tensor is at module.0.bias")
