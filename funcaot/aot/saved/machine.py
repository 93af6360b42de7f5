"""What compiled programs depend on beside the function: versions, settings and the processor."""

from __future__ import annotations

import dataclasses
import functools
import hashlib
import importlib
import json
import sys
from pathlib import Path
from typing import Any

import torch

from funcaot import config
from funcaot._torch.inductor.generated import settings_of_inductor
from funcaot._torch.tensors.guards import settings_of_ops
from funcaot._torch.tensors.hardware import present


def machine_data() -> dict[str, Any]:
    """Everything, by name; a program is taken from a file only where all of it is equal."""
    numpy = sys.modules.get("numpy")
    return {
        "Python": sys.version,
        "torch": f"{torch.__version__} {torch.version.git_version}",
        "NumPy": str(getattr(numpy, "__version__", None)),
        "funcaot": _sources(),
        "the hardware": present(),
        "the configuration of funcaot": _text(dataclasses.asdict(config.get())),
        "the configuration of Inductor": settings_of_inductor(),
        "settings of torch": settings_of_ops(),
    }


def difference(known: dict[str, Any]) -> str:
    """What isn't as it was when an artifact was written, in words; empty if everything is."""
    now = machine_data()
    for name, value in now.items():
        if json.loads(json.dumps(value)) != known.get(name):
            short = len(str(value)) < 80 and len(str(known.get(name))) < 80
            return f"{name} changed" + (f" from {known.get(name)} to {value}" if short else "")
    return ""


def _text(values: dict[str, Any]) -> str:
    # What is only about caches and checks changes no program.
    kept = ("fallback_random", "exact_special_values", "specialize_on_values", "check_aliases")
    kept = (*kept, "without_patches")
    return ", ".join(f"{name}={values[name]}" for name in kept)


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
