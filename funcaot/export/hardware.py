"""What compiled code needs of a machine: recorded by ``export``, compared by ``load``."""

from __future__ import annotations

import platform
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch

from funcaot.errors import ArtifactError

# Instructions that a C++ compiler uses by itself when it compiles for this machine.
_INSTRUCTIONS = (
    "sse",
    "ssse",
    "avx",
    "fma",
    "f16c",
    "bmi",
    "abm",
    "amx",
    "popcnt",
    "movbe",
    "vnni",
    "gfni",
    "vaes",
    "vpclmulqdq",
    "asimd",
    "sve",
    "fp16",
    "bf16",
    "i8mm",
)


def present() -> dict[str, Any]:
    """This machine, as an artifact records it."""
    return {
        "machine": platform.machine(),
        "system": platform.system(),
        "flags": sorted(_flags()),
        "threads": torch.get_num_threads(),
    }


def _flags() -> set[str]:
    """Instruction sets of the processor; none where the system doesn't say."""
    try:
        with Path("/proc/cpuinfo").open(encoding="utf-8", errors="replace") as lines:
            for line in lines:
                name, _, found = line.partition(":")
                if name.strip() in ("flags", "Features"):
                    return {flag for flag in found.split() if flag.startswith(_INSTRUCTIONS)}
    except OSError:
        pass
    return set()


def check(path: str, wanted: Mapping[str, Any]) -> None:
    """Refuse an artifact whose code this machine can't run.

    Raises:
        ArtifactError: It names what is missing.
    """
    found = present()
    for name in ("system", "machine"):
        if wanted[name] != found[name]:
            raise _other_machine(path, str(wanted[name]), str(found[name]))
    missing = set(wanted["flags"]) - set(found["flags"]) if found["flags"] else set()
    if missing:
        needed = "a processor with " + ", ".join(sorted(missing))
        raise _other_machine(path, needed, "one without")


def _other_machine(path: str, expected: str, got: str) -> ArtifactError:
    return ArtifactError(
        f"{path} holds code that was compiled for another machine.",
        expected=expected,
        got=got,
        remedy="export the function again on this machine, or on one like it.",
    )
