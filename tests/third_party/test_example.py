"""``examples/force_field.py``: compiled, it loses what eager mode loses, and its errors fall."""

import importlib
import sys
from pathlib import Path

import pytest
import torch
import training

import funcaot

pytestmark = pytest.mark.filterwarnings("ignore")
EXAMPLES = Path(__file__).resolve().parents[2] / "examples"


def test_force_field(monkeypatch, tmp_path):
    monkeypatch.syspath_prepend(str(EXAMPLES))
    module = importlib.import_module("force_field")
    batches, test = module.data(48)
    eager = module.Training(batches, "none", features=16)
    compiled = module.Training(batches, training.BACKEND, features=16)
    before = compiled.errors(test)
    for index in range(60):
        expected, found = eager.step(index), compiled.step(index)
        if index < 20:
            torch.testing.assert_close(found, expected, rtol=1e-4, atol=0)
    made = funcaot.report(compiled.loss).cache_misses
    assert made == 1
    assert all(now < 0.5 * then for now, then in zip(compiled.errors(test), before, strict=True))
    module.draw(compiled, test, tmp_path / "parity.png")
    assert (tmp_path / "parity.png").stat().st_size > 10_000
    training.measured.append((made, None))


def test_force_field_says_what_is_missing(monkeypatch):
    monkeypatch.syspath_prepend(str(EXAMPLES))
    module = importlib.import_module("force_field")
    monkeypatch.setitem(sys.modules, "schnetpack", None)
    with pytest.raises(SystemExit, match="pip install schnetpack ase"):
        module.library()
