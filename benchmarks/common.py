"""What every benchmark shares: where results go, what they were measured on, plain tables."""

from __future__ import annotations

import argparse
import importlib.metadata
import json
import os
import platform
import re
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
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
    parser.add_argument(
        "--minutes", type=float, default=5.0, help="nothing new is measured after that time"
    )
    return parser


class Clock:
    """How long a script may go on to measure something new."""

    def __init__(self, minutes: float) -> None:
        self.deadline = time.monotonic() + 60 * minutes

    def is_over(self, name: str) -> bool:
        """Whether time is up; says what is left out then."""
        over = time.monotonic() > self.deadline
        if over:
            progress(f"{name}: left out, time is up")
        return over


def progress(text: str) -> None:
    """Say what is being measured."""
    print(f"... {text}", file=sys.stderr, flush=True)


def environment_of() -> dict[str, Any]:
    """The machine and the versions."""
    versions = {"python": platform.python_version(), "torch": torch.__version__}
    for name in ("funcaot", "jax", "numpy"):
        try:
            versions[name] = importlib.metadata.version(name)
        except importlib.metadata.PackageNotFoundError:
            continue
    return {
        "processor": _processor(),
        "cores": os.cpu_count(),
        "threads": torch.get_num_threads(),
        "others": _others(),
        "system": f"{platform.system()} {platform.machine()}",
        "versions": versions,
    }


def _busy() -> float:
    """Seconds that the machine's processors have worked for anybody; 0 where it isn't told."""
    try:
        words = Path("/proc/stat").read_text().split("\n", 1)[0].split()
    except OSError:
        return 0.0
    idle = {4, 5}  # idle, and waiting for a disk
    ticks = sum(int(word) for at, word in enumerate(words[1:9], 1) if at not in idle)
    return ticks / os.sysconf("SC_CLK_TCK")


_STARTED = time.monotonic(), _busy()


def _others() -> float:
    """Share of the machine that other processes took while this one ran."""
    elapsed, busy = time.monotonic() - _STARTED[0], _busy() - _STARTED[1]
    own = sum(os.times()[:4])
    return round(max(busy - own, 0.0) / max(elapsed * (os.cpu_count() or 1), 1e-9), 3)


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
    text = json.dumps(content, indent=1)
    text = re.sub(r"\[[^][{}]*\]", lambda found: " ".join(found[0].split()), text)  # lists: a line
    path.write_text(text + "\n")
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


@dataclass(frozen=True)
class Target:
    """What was aimed at: how much of another's time (or bytes) funcaot may take at most."""

    row: str
    other: str
    ratio: float
    limit: float

    @property
    def met(self) -> bool:
        return round(self.ratio, 2) <= round(self.limit, 2)


def target_rows(targets: Sequence[Target]) -> list[list[str]]:
    """A row each, for a table with ``TARGET_HEAD``."""
    return [
        [
            target.row,
            target.other,
            f"{target.ratio:.2f}",
            f"{target.limit:.2f}",
            "met" if target.met else "NOT MET",
        ]
        for target in targets
    ]


TARGET_HEAD = ("what", "funcaot by", "ratio", "at most", "")


def print_targets(targets: Sequence[Target]) -> list[dict[str, Any]]:
    """Print what was aimed at beside what came out.

    Returns:
        The targets as they go into the JSON.
    """
    print_table("What was aimed at", TARGET_HEAD, target_rows(targets))
    return [asdict(target) for target in targets]


class Failures:
    """What didn't run: a contestant that fails is left out, and the others go on."""

    def __init__(self) -> None:
        self.messages: dict[str, str] = {}

    def attempt(self, name: str, call: Callable[..., Any], *arguments: Any) -> Any:
        """What ``call`` returns, or None after noting what it raised."""
        try:
            return call(*arguments)
        except Exception as error:  # noqa: BLE001 (whatever it raises is the result)
            lines = str(error).splitlines() or [""]
            self.messages[name] = f"{type(error).__name__}: {lines[0][:120]}"
            print(f"... {name} failed: {self.messages[name]}", file=sys.stderr, flush=True)
            return None
