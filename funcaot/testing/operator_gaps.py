"""What ``funcaot.compile`` does not do for operators of torch's ``op_db``: data, with reasons."""

from __future__ import annotations

import fnmatch
from dataclasses import dataclass

ALL_STEPS = ("forward", "backward", "odd tangents", "double backward", "vmap", "jvp")


@dataclass(frozen=True)
class OperatorGap:
    """A gap: these operators, in these steps, for this reason.

    Attributes:
        operators: Full names or patterns (``fnmatch``).
        steps: Names of steps.
        reason: Why, in a line.
    """

    operators: tuple[str, ...]
    steps: tuple[str, ...]
    reason: str

    def covers(self, operator: str, step: str) -> bool:
        """Whether this operator is known not to work in this step."""
        return step in self.steps and any(
            fnmatch.fnmatchcase(operator, pattern) for pattern in self.operators
        )


GAPS: tuple[OperatorGap, ...] = ()


def gap_for(operator: str, step: str) -> OperatorGap | None:
    """The known gap that covers an operator in a step, or None."""
    return next((gap for gap in GAPS if gap.covers(operator, step)), None)
