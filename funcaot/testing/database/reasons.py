"""Limits of torch that several Functions of the database meet."""

from __future__ import annotations

from funcaot.testing.records import Limitation

IN_PLACE_BATCH = (
    "torch.func.vmap refuses to write what differs between examples into a tangent that is one for "
    "all, also for its own in-place operations"
)


def no_empty_batch(*transforms: str) -> tuple[Limitation, ...]:
    """Forward mode of nothing, all columns at once."""
    reason = "torch.func.vmap over a batch of none can't add the zero tangents of forward mode"
    return tuple(Limitation(name, reason, sample="empty") for name in transforms)
