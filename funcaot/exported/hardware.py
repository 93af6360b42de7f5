"""What compiled code needs of a machine: recorded by ``export``, compared by ``load``."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from funcaot._torch.tensors.hardware import present
from funcaot.errors import ArtifactError


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
