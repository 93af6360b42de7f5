"""What every benchmark shares: where results go, what they were measured on, plain tables."""

from __future__ import annotations

import argparse
import importlib.metadata
import json
import os
import platform
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch

# Results go to the documentation; elsewhere for a trial.
RESULTS = Path(
    os.environ.get("FUNCAOT_BENCHMARKS")
    or Path(__file__).resolve().parent.parent / "docs" / "benchmarks"
)


def parser_of(description: str | None) -> argparse.ArgumentParser:
    """A parser with the option that all benchmarks have."""
    parser = argparse.ArgumentParser(description=(description or "").splitlines()[0])
    parser.add_argument(
        "--quick", action="store_true", help="a trial: few rounds, the smallest case"
    )
    return parser


def progress(text: str) -> None:
    """Say what is being measured."""
    print(f"... {text}", file=sys.stderr, flush=True)


def environment_of() -> dict[str, Any]:
    """The machine and the versions."""
    versions = {"python": platform.python_version(), "torch": torch.__version__}
    versions["funcaot"] = importlib.metadata.version("funcaot")
    for name in ("jax", "numpy"):
        module = sys.modules.get(name)
        if module is not None:
            versions[name] = module.__version__
    return {
        "processor": _processor(),
        "cores": os.cpu_count(),
        "threads": torch.get_num_threads(),
        "system": f"{platform.system()} {platform.machine()}",
        "versions": versions,
    }


def _processor() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        return platform.processor() or "unknown"
    return next(
        (line.partition(":")[2].strip() for line in lines if "model name" in line), "unknown"
    )


def write_json(name: str, content: dict[str, Any]) -> Path:
    """Write a benchmark's results under ``docs/benchmarks``."""
    RESULTS.mkdir(parents=True, exist_ok=True)
    path = RESULTS / f"{name}.json"
    path.write_text(json.dumps(content, indent=1, sort_keys=True) + "\n")
    return path


def print_table(title: str, head: Sequence[str], rows: Sequence[Sequence[str]]) -> None:
    """Print aligned columns."""
    table = [list(head), *[list(row) for row in rows]]
    widths = [max(len(row[column]) for row in table) for column in range(len(head))]
    print(f"\n{title}\n")
    for row in table:
        print(
            "  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip()
        )
    print(flush=True)
