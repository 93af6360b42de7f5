"""Modules whose code says ``type(x)``, reached as attributes of other modules, in captures."""

import sys
import types

import torch

import funcaot
from funcaot._torch.tracing.seen_classes import show_classes, showing_classes
from funcaot.aot.state.state import contents_of

SOURCE = """
FACTOR = 2

def scale(x):
    return x * FACTOR if type(x).__name__ != "Parameter" else x
"""


def test_what_a_capture_shows_them_is_no_change(monkeypatch):
    """Each call was captured again, for what a capture around this one had put there was gone."""
    package, inner = types.ModuleType("asking"), types.ModuleType("asking.inner")
    exec(compile(SOURCE, "inner.py", "exec"), vars(inner))
    package.inner = inner
    monkeypatch.setitem(sys.modules, "asking", package)
    monkeypatch.setitem(sys.modules, "asking.inner", inner)

    def run(x):
        return package.inner.scale(x)

    compiled = funcaot.compile(run, backend="eager")
    x = torch.randn(4)
    with showing_classes():
        show_classes(inner.scale.__code__, vars(inner))
        assert "type" not in contents_of(vars(inner))
        assert torch.equal(compiled(x), 2 * x)
    assert "type" not in vars(inner)
    assert torch.equal(compiled(x), 2 * x)
    assert funcaot.report(compiled).cache_misses == 1
