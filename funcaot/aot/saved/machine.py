"""What all programs of a file depend on beside functions: versions and the processor."""

from __future__ import annotations

import functools
import hashlib
import importlib
import json
import sys
from pathlib import Path
from typing import Any

import torch

from funcaot._torch.tensors.hardware import present


def machine_data() -> dict[str, Any]:
    """Everything, by name; a program is taken from a file only where all of it is equal."""
    numpy = sys.modules.get("numpy")
    return {
        "Python": sys.version,
        "torch": f"{torch.__version__} {torch.version.git_version}",
        "NumPy": str(getattr(numpy, "__version__", None)),
        "funcaot": _sources(),
        "the hardware": {name: value for name, value in present().items() if name != "threads"},
    }


def difference(known: dict[str, Any], now: dict[str, Any]) -> str:
    """What isn't as it was when an artifact was written, in words; empty if everything is."""
    for name, value in now.items():
        if json.loads(json.dumps(value)) != known.get(name):
            short = len(str(value)) < 80 and len(str(known.get(name))) < 80
            return f"{name} changed" + (f" from {known.get(name)} to {value}" if short else "")
    return ""


@functools.cache
def _sources() -> str:
    """A digest of funcaot's own source: another one may capture otherwise."""
    package = importlib.import_module("funcaot")
    root = Path(str(package.__file__)).parent
    found = hashlib.sha256()
    for path in sorted([*root.rglob("*.py"), *root.rglob("*.cpp")]):
        found.update(path.relative_to(root).as_posix().encode())
        found.update(path.read_bytes())
    return found.hexdigest()
