"""Trainers of other people on two ranks: the examples print the same losses, compiled or not."""

from pathlib import Path

import pytest

from tests.distributed.ranks import torchrun

ROOT = Path(__file__).resolve().parents[2]
NEEDED = {
    "with_fabric": "lightning_fabric",
    "with_accelerate": "accelerate",
    "with_transformers": "transformers",
}


def _losses(name: str, *options: str) -> list[float]:
    scripts = ROOT / "tests/examples/leaving.py", ROOT / "examples" / "trainers" / f"{name}.py"
    ended = torchrun(2, *map(str, scripts), *options, timeout=200)
    assert ended.returncode == 0, ended.stderr[-3000:]
    lines = [line for line in ended.stdout.splitlines() if line.startswith("step ")]
    return [float(line.split()[-1]) for line in lines]


WAYS = {
    "eager": ("--backend", "eager"),
    "inductor": ("--backend", "inductor"),
    "by_name": ("--by-name",),
}


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("name", NEEDED)
def test_trainer(name, way):
    pytest.importorskip(NEEDED[name])
    if name == "with_fabric" and way == "by_name":
        pytest.skip("Fabric compiles nothing itself")
    plain = _losses(name, "--plain")
    assert len(plain) >= 3
    assert _losses(name, *WAYS[way]) == pytest.approx(plain, rel=1e-4)
