"""A program from a file assigns what it did where it was saved, or isn't taken."""

import sys
import types
from collections import deque

import pytest
import torch

import funcaot

TEXT = """
class W:
    pass
w, zeros = W(), torch.zeros(2)
w.s = w.t = torch.ones(2)
w.q = deque([zeros] * 3, maxlen=3)
w.d = {"a": 1.5}
def assigns(x):
    w.t = w.s
    return x + 1
def moves(x):
    w.q.append(x.detach())
    return x + 1
def adds(x):
    w.d["a"] += 0.5
    return x + 1
"""


def world():
    """The module as each process makes it."""
    module = types.ModuleType("saved_assigned")
    module.__dict__.update(torch=torch, deque=deque)
    sys.modules[module.__name__] = module
    exec(TEXT, module.__dict__)
    return module


def change(w):
    w.t = torch.zeros(2)
    w.q = deque([torch.full((2,), float(i)) for i in range(3)], maxlen=3)
    w.d["a"] = 4.0


def state(w):
    return w.t is w.s, [float(each.sum()) for each in w.q], w.d


@pytest.mark.parametrize("changed", [False, True])
@pytest.mark.parametrize("name", ["assigns", "moves", "adds"])
def test_loaded_program(name, changed, tmp_path):
    first = funcaot.compile(getattr(world(), name), backend="eager")
    first(torch.ones(2))
    assert first.save(tmp_path / "saved").programs == 1
    eager = world()
    if changed:
        change(eager.w)
    getattr(eager, name)(torch.ones(2))
    module = world()
    if changed:
        change(module.w)
    loaded = funcaot.compile(getattr(module, name), backend="eager", artifacts=tmp_path / "saved")
    loaded(torch.ones(2))
    assert state(module.w) == state(eager.w)
    assert funcaot.report(loaded).cache_misses == changed
