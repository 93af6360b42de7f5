"""``examples/distributed_forces.py`` under torchrun: the same losses on 1, 2 and 4 ranks."""

from pathlib import Path

import pytest

from tests.distributed.ranks import torchrun

ROOT = Path(__file__).resolve().parents[2]

pytestmark = pytest.mark.slow


def losses(layout: str, ranks: int) -> list[float]:
    """What a run prints."""
    given = [layout, "--backend", "eager", "--steps", "6", "--size", "16", "--width", "8"]
    leaving, example = "tests/examples/leaving.py", "examples/distributed_forces.py"
    scripts = str(ROOT / leaving), str(ROOT / example)
    run = torchrun(ranks, *scripts, *given, timeout=240, PRINT_LOSSES="1", OMP_NUM_THREADS="1")
    assert run.returncode == 0, run.stderr[-3000:]
    assert f"{layout} on {ranks} rank(s)" in run.stdout
    return [float(word) for word in run.stdout.splitlines()[-1].split()]


RUNS = [
    (("ddp", 2), ("sharded", 4)),
    pytest.param((("ddp", 4), ("sharded", 2)), marks=pytest.mark.long),
]


@pytest.mark.parametrize("runs", RUNS, ids=["some", "others"])
def test_losses_are_the_same_however_many_ranks(runs):
    expected = losses("ddp", 1)
    assert expected[-1] < expected[0]
    for layout, ranks in runs:
        assert losses(layout, ranks) == pytest.approx(expected, rel=1e-6), (layout, ranks)
