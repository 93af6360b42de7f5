"""Changes of ``requires_grad`` that a function makes by itself."""

from __future__ import annotations

from funcaot.aot.capture.capture import Input
from funcaot.aot.effects.actions.start_requiring_grad import StartRequiringGrad
from funcaot.aot.effects.actions.stop_requiring_grad import StopRequiringGrad

__all__ = ["attribute_changes"]


def attribute_changes(
    slot: Input,
) -> tuple[StartRequiringGrad | None, StopRequiringGrad | None]:
    """Changes of ``requires_grad`` that aren't the consequence of a write."""
    tensor, required = slot.tensor, slot.spec.requires_grad
    if slot.kind in ("member", "joined"):
        return None, None
    if tensor.requires_grad and not required and tensor.is_leaf:
        return StartRequiringGrad(), None
    if required and not tensor.requires_grad:
        return None, StopRequiringGrad(slot.spec.is_leaf)
    return None, None
