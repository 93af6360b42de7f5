"""The first stage of ``pipeline.compile_forward``: a call runs on a tape."""

from __future__ import annotations

from dataclasses import replace

from funcaot.aot.capture.capture import Capture, Sharing, capture
from funcaot.aot.capture.grad_effects import GradientTracker
from funcaot.aot.signature.dynamic import Opening
from funcaot.aot.signature.signature import Signature
from funcaot.aot.state.state_tracker import StateTracker
from funcaot.aot.state.torch_random import refuse_new_generators


def capture_call(
    tracker: StateTracker,
    signature: Signature,
    *,
    sharing: Sharing | None = None,
    opening: Opening | None = None,
) -> Capture:
    """Run a call's function on a tape.

    Args:
        tracker: The function, its arguments, and what it stores.
        signature: The call's signature.
        sharing: Inputs that share memory, if an earlier run found that this matters.
        opening: What the program leaves open.

    Raises:
        UnsupportedError: For what can't be captured.
        Exception: Whatever the function raises, unchanged.
    """
    gradients = GradientTracker(tracker, tracker.leaves, tracker.name)
    captured = capture(gradients, signature, tracker.leaves, tracker.name, sharing, opening)
    refuse_new_generators(tracker.name, tracker.environment, captured.tape.root, tracker.leaves)
    if opening is not None and opening.numbers is not None:
        opening.numbers.refuse_classes(tracker.ran.users)
    return replace(captured, gradients=gradients.effects(captured.lifted))
