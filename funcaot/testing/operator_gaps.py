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


VALUES = (
    "item",
    "allclose",
    "combinations",
    "corrcoef",
    "cov",
    "equal",
    "istft",
    "masked_select",
    "unique",
    "unique_consecutive",
    "bincount",
    "nonzero",
    "argwhere",
    "nn.functional.ctc_loss",
    "nn.functional.gaussian_nll_loss",
    "linalg.lstsq",
    "linalg.lstsq.grad_oriented",
)

GAPS: tuple[OperatorGap, ...] = (
    OperatorGap(
        VALUES,
        ALL_STEPS,
        "the result's shape, or which branch is taken, depends on the values of a tensor",
    ),
    OperatorGap(
        ("narrow", "nn.functional.one_hot"),
        tuple(step for step in ALL_STEPS if step != "vmap"),
        "a start or a number of classes is read from a tensor",
    ),
    OperatorGap(
        ("normal.in_place",),
        ("vmap",),
        "the numbers of a batched in-place draw come in another order",
    ),
)


def gap_for(operator: str, step: str) -> OperatorGap | None:
    """The known gap that covers an operator in a step, or None."""
    return next((gap for gap in GAPS if gap.covers(operator, step)), None)
