"""The examples' training steps lose what eager's lose, whichever way they are compiled."""

import importlib
import sys
from pathlib import Path

import numpy as np
import pytest

EXAMPLES = Path(__file__).resolve().parents[2] / "examples"
STEPS = 4


def clusters(count=96, seed=0):
    """What ``structures`` computes with ASE, but for labels that mean nothing."""
    random = np.random.default_rng(seed)
    draws = {
        "x": 2 * random.standard_normal((count, 13, 3)),
        "e": random.standard_normal(count),
        "f": random.standard_normal((count, 13, 3)),
    }
    data = {key: value.astype(np.float32) for key, value in draws.items()}
    return data | {"z": random.integers(0, 3, (count, 13))}


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "arguments"),
    [
        ("force_matching", ()),
        ("poisson", ()),
        ("gradient_penalty", ()),
        ("private_training", ()),
        ("training_step", ("digits",)),
        ("training_step", ("convolutions",)),
        ("training_step", ("gpt",)),
    ],
)
def test_every_way_trains_like_eager(name, arguments, monkeypatch):
    monkeypatch.syspath_prepend(str(EXAMPLES))
    module = importlib.import_module(name)
    if name == "force_matching":
        monkeypatch.setattr(module, "structures", clusters)
    ways = module.makers(*arguments, backend="eager")
    side_by_side = sys.modules["side_by_side"]
    eager = side_by_side.start(ways["eager"], STEPS)
    for way, make in ways.items():
        if way.startswith("funcaot"):
            started = side_by_side.start(make, STEPS)
            assert started.refusal == "", way
            assert started.gap(eager) < 1e-4, way
