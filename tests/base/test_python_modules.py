"""A user's file may be called like a module of Python's library."""

import json.decoder
import sys
import types

import pytest

from funcaot.base.python_modules import is_pythons


@pytest.mark.parametrize("module", ["json.decoder", "math", "sys", "zipimport", "graphlib", "os"])
def test_modules_of_python(module):
    assert json.decoder
    assert is_pythons(module)


@pytest.mark.parametrize("module", ["torch", "numpy.linalg", "pytest", "__main__", ""])
def test_other_modules(module):
    assert not is_pythons(module)


def test_a_module_of_a_user_that_hides_one(tmp_path, monkeypatch):
    hiding = types.ModuleType("graphlib")
    monkeypatch.setitem(sys.modules, "graphlib", hiding)
    assert not is_pythons("graphlib")
    for file in (tmp_path / "graphlib.py", f"{sys.prefix}/lib/site-packages/graphlib.py"):
        hiding.__file__ = str(file)
        assert not is_pythons("graphlib.inner")
