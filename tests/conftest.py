"""Settings for every test: a thread a worker, the compile cache in build/, fixed seeds."""

import os
from pathlib import Path

# Before torch is imported, and only where the caller has not chosen otherwise.
os.environ.setdefault("OMP_NUM_THREADS", "1")
os.environ.setdefault("TORCHINDUCTOR_COMPILE_THREADS", "1")
os.environ.setdefault(
    "TORCHINDUCTOR_CACHE_DIR", str(Path(__file__).resolve().parents[1] / "build" / "inductor")
)
os.environ.setdefault("MPLBACKEND", "Agg")
# Every graph that a test compiles is proved to return nothing that shares memory.
os.environ.setdefault("FUNCAOT_CHECK_ALIASES", "1")

import pytest
import torch


@pytest.fixture(autouse=True)
def fixed_seed() -> None:
    """Every test draws the same numbers, alone or among others."""
    torch.manual_seed(0)
