"""``examples/distributed_forces.py`` under torchrun: the same losses on 1, 2 and 4 ranks."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]

pytestmark = pytest.mark.slow


def losses(layout: str, ranks: int) -> list[float]:
    """What a run prints; torchrun takes a free port."""
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone"]
    command += ["--nproc-per-node", str(ranks), str(ROOT / "examples" / "distributed_forces.py")]
    command += [layout, "--backend", "eager", "--steps", "6", "--size", "16", "--width", "8"]
    settings = {"PYTHONPATH": str(ROOT), "PRINT_LOSSES": "1", "OMP_NUM_THREADS": "1"}
    run = subprocess.run(
        command,
        env={**os.environ, **settings, "GLOO_SOCKET_IFNAME": "lo"},
        capture_output=True,
        text=True,
        timeout=240,
        check=False,
    )
    assert run.returncode == 0, run.stderr[-3000:]
    assert f"{layout} on {ranks} rank(s)" in run.stdout
    return [float(word) for word in run.stdout.splitlines()[-1].split()]


def test_losses_are_the_same_however_many_ranks():
    expected = losses("ddp", 1)
    assert expected[-1] < expected[0]
    for layout, ranks in (("ddp", 2), ("sharded", 2), ("sharded", 4)):
        assert losses(layout, ranks) == pytest.approx(expected, rel=1e-6), (layout, ranks)
