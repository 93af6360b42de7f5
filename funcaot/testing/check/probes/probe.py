"""What a row of a check is made of: the probes say what to try, the runner makes a row of it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from funcaot.testing.records import FunctionInfo, Sample

PASSES = "passes"
WARNS = "warns"
WRONG = "wrong"
UNSUPPORTED = "unsupported"
ERROR = "error"
# From the mildest to the worst; a row has the worst status of its samples.
SEVERITY = (PASSES, UNSUPPORTED, WARNS, WRONG, ERROR)

# Which samples a probe is tried on.
EVERY = "every"
PLAIN = "plain"
SMALLEST = "smallest"


@dataclass(frozen=True)
class Finding:
    """What one probe found on one sample.

    Attributes:
        detail: What is wrong.
        remedy: What to do about it.
        largest_error: How far the result is from the oracle's, where there is a number.
        status: One of the words above.
    """

    detail: str = ""
    remedy: str = ""
    largest_error: float | None = None
    status: str = WRONG


Try = Callable[[FunctionInfo, Sample], Finding | None]


@dataclass(frozen=True)
class Probe:
    """One row of a check.

    Attributes:
        name: Of the row.
        run: Tries it on one sample; None where nothing was found.
        needs: Which ``supports_*`` fields of a ``FunctionInfo`` it uses, without the prefix.
        samples: Which samples it is tried on: every one, those without kinks, extremes and odd
            layouts, or the smallest of these.
        rule: The staticmethod that a finding is about, for the place of an annotation.
        compiled: It is tried on the compiled callable too.
        linear: It assumes that backward is linear in its cotangent.
        fresh: The compiled callable must not have been called before.
    """

    name: str
    run: Try
    needs: frozenset[str] = frozenset({"autograd"})
    samples: str = PLAIN
    rule: str = "backward"
    compiled: bool = True
    linear: bool = False
    fresh: bool = False


def worst(statuses: list[str]) -> str:
    """The worst of some statuses."""
    return max(statuses, key=SEVERITY.index, default=PASSES)
