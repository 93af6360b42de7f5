"""What was measured, as files: one for each version of torch and kind of processor."""

from __future__ import annotations

import functools
import json
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import torch

import funcaot
from tests.special_values.measure import Compiler, Found, Setting, measure
from tests.special_values.records import COMPLEX64, CONTIGUOUS, FLOAT32
from tests.special_values.table import GROUPS

FOLDER = Path(__file__).parent / "measured"
DEFAULT, EXACT, UPSTREAM = "funcaot", "funcaot, exact_special_values", "torch.compile"

# Enough to see whether a difference is Inductor's.
_MEASURED_UPSTREAM = ((FLOAT32, CONTIGUOUS), (COMPLEX64, CONTIGUOUS))

Measured = dict[str, dict[str, Found]]


_ours = functools.partial(funcaot.compile, dynamic=False)


def _upstream(function: Callable[..., Any]) -> Callable[..., Any]:
    torch._dynamo.reset()
    return torch.compile(function, dynamic=False)


COMPILERS: dict[str, Compiler] = {
    DEFAULT: _ours,
    EXACT: _ours,  # The option is set around the whole: backwards are compiled late.
    UPSTREAM: _upstream,
}


def version() -> str:
    """The version of torch, without what it was built for."""
    return torch.__version__.split("+")[0]


def processor() -> str:
    """The vectors that eager and Inductor compute with."""
    return torch.backends.cpu.get_cpu_capability().replace(" ", "_")


def path_here() -> Path:
    """The file of this torch on this processor."""
    return FOLDER / f"{version()}-{processor()}.json"


def measure_group(compiler: str, title: str, only: Found | None = None) -> Found:
    """What differs with one of the compilers.

    Args:
        compiler: Its name.
        title: The group's.
        only: What differed before; other cases and settings are left out.
    """

    def wanted(name: str, setting: Setting) -> bool:
        if compiler == UPSTREAM and (setting.dtype, setting.layout) not in _MEASURED_UPSTREAM:
            return False
        return only is None or str(setting) in only.get(name, {})

    with funcaot.config.patch(exact_special_values=compiler == EXACT):
        return measure(COMPILERS[compiler], title, wanted)


def update(compilers: Sequence[str], titles: Sequence[str]) -> None:
    """Measure groups with compilers, and keep what comes out beside what was known."""
    path = path_here()
    measured: Measured = load_one(path) if path.exists() else {}
    for group in GROUPS:
        if group.title not in titles:
            continue
        for compiler in compilers:
            # With the option nothing can differ that doesn't differ without.
            only = measured[DEFAULT].get(group.title, {}) if compiler == EXACT else None
            found = measure_group(compiler, group.title, only)
            measured.setdefault(compiler, {})[group.title] = found
            _save(path, measured)


def _save(path: Path, measured: Measured) -> None:
    order = [group.title for group in GROUPS]
    kept = {
        compiler: {
            title: measured[compiler][title] for title in order if title in measured[compiler]
        }
        for compiler in COMPILERS
        if compiler in measured
    }
    path.parent.mkdir(exist_ok=True)
    path.write_text(json.dumps(kept, indent=1) + "\n")


def load_one(path: Path) -> Measured:
    """One file."""
    return json.loads(path.read_text())


def load() -> dict[str, Measured]:
    """All files, by version and processor."""
    return {path.stem: load_one(path) for path in sorted(FOLDER.glob("*.json"))}
