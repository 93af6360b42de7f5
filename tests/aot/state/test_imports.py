"""A module that a function imports is imported once, as in eager, and never undone."""

import contextlib
import itertools
import sys

import pytest
import torch

import funcaot
from funcaot.errors import UnsupportedError

NAMES = (f"imported_in_a_capture_{i}" for i in itertools.count())


@pytest.fixture
def make_module(tmp_path, monkeypatch):
    """Write a module: its name."""
    monkeypatch.syspath_prepend(str(tmp_path))

    def make(text):
        name = next(NAMES)
        (tmp_path / f"{name}.py").write_text(text)
        return name

    yield make
    for name in [name for name in sys.modules if name.startswith("imported_in_a_capture_")]:
        del sys.modules[name]


def scaled_by(name):
    def function(x):
        module = __import__(name)
        return x * module.SCALE

    return function


@pytest.mark.parametrize("more", ["", "import itertools\nCOUNT = itertools.count()\n"])
def test_values_of_a_module(make_module, more):
    name = make_module(f"{more}SCALE = 3.0\n")
    compiled = funcaot.compile(scaled_by(name), backend="eager")
    for _ in range(3):
        torch.testing.assert_close(compiled(torch.ones(2)), torch.full((2,), 3.0))
    sys.modules[name].SCALE = 5.0
    for _ in range(2):
        torch.testing.assert_close(compiled(torch.ones(2)), torch.full((2,), 5.0))
    assert sys.modules[name].SCALE == 5.0
    assert len(funcaot.report(compiled).entries) == 2


def test_what_an_import_does_happens_once(make_module):
    registry = make_module("FOUND = []\n")
    name = make_module(f"from {registry} import FOUND\nFOUND.append('here')\nSCALE = 2.0\n")
    found = __import__(registry).FOUND
    compiled = funcaot.compile(scaled_by(name), backend="eager")
    for _ in range(3):
        compiled(torch.ones(2))
    assert found == ["here"]


def test_an_import_before_a_refusal(make_module):
    name = make_module("SCALE = 2.0\nNAMES = {}\n")

    def function(x):
        return scaled_by(name)(x), (n for n in range(3))

    compiled = funcaot.compile(function, backend="eager")
    compiled(torch.ones(2))  # as it is
    with pytest.raises(UnsupportedError, match="generator"):
        compiled(torch.ones(2))
    assert sys.modules[name].SCALE == 2.0


def test_an_import_that_fails_each_time(make_module):
    name = make_module("raise ImportError('no such device')\n")

    def function(x):
        try:
            __import__(name)
        except ImportError:
            return x * 2
        return x

    compiled = funcaot.compile(function, backend="eager")
    for _ in range(4):
        torch.testing.assert_close(compiled(torch.ones(2)), torch.full((2,), 2.0))
    assert len(funcaot.report(compiled).entries) == 1


def test_lowering_says_that_a_module_is_imported(make_module):
    function = scaled_by(make_module("SCALE = 2.0\n"))
    with pytest.raises(UnsupportedError, match=r"imports imported_in_\w+ for the first time"):
        funcaot.lower(function, torch.ones(2))
    function(torch.ones(2))
    assert funcaot.lower(function, torch.ones(2)).cost.flops == 2


def test_what_looks_for_modules_is_no_code_of_the_function(monkeypatch):
    """An installer's finder, which compares objects by identity, ran in the import of a library."""
    asked = []

    class Finder:
        @staticmethod
        def find_spec(name, path=None, target=None):
            asked.append(name)
            return

    def imports(x):
        with contextlib.suppress(ImportError):
            import no_module_of_this_name  # noqa: F401
        return x.sin()

    monkeypatch.setattr(sys, "meta_path", [Finder, *sys.meta_path])
    compiled = funcaot.compile(imports, backend="eager")
    x = torch.ones(3)
    for _ in range(2):
        torch.testing.assert_close(compiled(x), x.sin())
    assert "no_module_of_this_name" in asked
    names = [code.co_name for code, _ in compiled.entries[0].forward.reader.ran.users]
    assert names == ["imports"]
