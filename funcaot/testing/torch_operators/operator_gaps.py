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


TANGENT_REFUSED = (
    "in forward mode a tangent is given to an input that torch's backward formula refuses to "
    "differentiate, and that its forward formula ignores"
)

GAPS: tuple[OperatorGap, ...] = (
    OperatorGap(
        ("as_strided.partial_views",),
        ("jvp",),
        "under a transform, a place in memory outside of the input that as_strided is called on",
    ),
    OperatorGap(
        ("new_empty_strided",),
        ("forward", "vmap"),
        "a returned tensor with gaps in its memory, filled in place; results are made dense",
    ),
    OperatorGap(
        ("unsafe_chunk", "unsafe_split"),
        ALL_STEPS,
        "results that share memory with their source though autograd doesn't know it, returned",
    ),
    OperatorGap(
        ("linspace.tensor_overload", "logspace.tensor_overload"),
        ("vmap",),
        "torch's own batching of the decomposed operator expands a Python number",
    ),
    OperatorGap(
        ("_native_batch_norm_legit",),
        ("vmap",),
        "running statistics that aren't batched can't be updated by batched ones, out of eager's "
        "order",
    ),
    OperatorGap(
        (
            "native_batch_norm",
            "_native_batch_norm_legit",
            "_batch_norm_with_update",
            "nn.functional.batch_norm",
            "nn.functional.instance_norm",
            "nn.functional.soft_margin_loss",
            "nn.functional.nll_loss",
        ),
        ("jvp",),
        TANGENT_REFUSED,
    ),
)


def gap_for(operator: str, step: str) -> OperatorGap | None:
    """The known gap that covers an operator in a step, or None."""
    return next((gap for gap in GAPS if gap.covers(operator, step)), None)
