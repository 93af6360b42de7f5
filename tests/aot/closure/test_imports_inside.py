"""Modules that a function imports where it runs: what it reads of them is compared and lifted."""

from __future__ import annotations

import importlib
import sys
from pathlib import Path
from typing import Any

import pytest
import torch

import funcaot

FUNCTIONS = """
def sibling(x):
    from . import settings
    return x * settings.scale

def name_of_sibling(x):
    from .settings import scale
    return x * scale

def parent(x):
    from .. import top
    return x * top

def module_of_parent(x):
    from .. import settings
    return x * settings.Kind.scale

def deeper(x):
    from ..inner.settings import Kind
    return x * Kind.scale

def in_a_helper(x):
    def helper():
        from ..settings import scale
        return scale
    return x * helper()

def by_text(x):
    import importlib
    return x * importlib.import_module(".settings", __package__).scale

def tensor(x):
    from ..settings import weight
    return x * weight

def whole_name(x):
    import funcaot_imported.inner.settings
    return x * funcaot_imported.inner.settings.weight
"""
SETTINGS = """
import torch
scale = 2.0
weight = torch.ones(3)
class Kind:
    scale = 3.0
"""
NAMES = [line[4 : line.index("(")] for line in FUNCTIONS.splitlines() if line.startswith("def ")]


@pytest.fixture
def package(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    """A package with a package inside, both with settings; its functions are in the inner one."""
    inner = tmp_path / "funcaot_imported" / "inner"
    inner.mkdir(parents=True)
    (inner.parent / "__init__.py").write_text("top = 2.0\n")
    (inner / "__init__.py").write_text("")
    for folder in (inner.parent, inner):
        (folder / "settings.py").write_text(SETTINGS)
    (inner / "functions.py").write_text(FUNCTIONS)
    monkeypatch.syspath_prepend(tmp_path)
    for name in ("settings", "inner.settings", "inner.functions"):
        importlib.import_module(f"funcaot_imported.{name}")
    yield sys.modules["funcaot_imported"]
    for name in [each for each in sys.modules if each.startswith("funcaot_imported")]:
        del sys.modules[name]


@pytest.mark.parametrize("name", NAMES)
def test_what_an_import_inside_leads_to(package: Any, name: str) -> None:
    """A change of what the module holds is seen by the next call, as in eager."""
    function = getattr(package.inner.functions, name)
    compiled = funcaot.compile(function, backend="eager")
    x = torch.arange(3.0)
    for step in range(3):
        assert torch.equal(compiled(x), function(x)), f"{name} in call {step}"
        package.top += 1
        for settings in (package.settings, package.inner.settings):
            settings.scale += 1
            settings.Kind.scale += 1
            settings.weight = settings.weight + 1
