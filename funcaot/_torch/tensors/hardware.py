"""What compiled code needs of a machine: artifacts record it and are compared with it."""

from __future__ import annotations

import platform
from pathlib import Path
from typing import Any

import torch

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
