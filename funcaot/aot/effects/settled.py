"""The first stages of ``pipeline.compile_forward``: a capture, its effects, and shared memory.

A first run takes every input to have memory of its own. Whether inputs share memory matters only
if the function writes to them, which that run finds out. Then the function runs again, on tensors
that share memory as the call's do, until nothing new is found.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import torch

from funcaot.aot.capture.capture import Capture, Sharing, capture
from funcaot.aot.capture.grad_effects import GradientTracker
from funcaot.aot.capture.shared_inputs import Touched, sharing_of, touched_inputs
from funcaot.aot.effects.analysis import analyse
from funcaot.aot.effects.attached import told_apart
from funcaot.aot.effects.effects import Effects
from funcaot.aot.effects.retained import check_gradients
from funcaot.aot.graph.observed.stages import Stages
from funcaot.aot.signature.dynamic import Opening
from funcaot.aot.signature.signature import Signature
from funcaot.aot.signature.sizes import SizeError
from funcaot.aot.state.optimizer_step import FirstStepError, StateReadError
from funcaot.aot.state.state_tracker import StateTracker
from funcaot.aot.state.torch_random import refuse_new_generators
from funcaot.errors import UnsupportedError


@dataclass(frozen=True, eq=False)
class Settled:
    """A capture that knows which of its inputs share memory.

    Attributes:
        captured: The capture.
        effects: What it does to its inputs, and what it returns.
        touched: Inputs of which it matters who shares their memory.
    """

    captured: Capture
    effects: Effects
    touched: Touched


def settle(
    run: Stages, tracker: StateTracker, signature: Signature, opening: Opening | None
) -> Settled:
    """Run a call's function on a tape until it is known which inputs share memory.

    Args:
        run: The stages of this compilation.
        tracker: The function, its arguments, and what it stores.
        signature: The call's signature.
        opening: What the program leaves open.

    Raises:
        SizeError: Inputs share memory and sizes are open.
        UnsupportedError: For what can't be captured.
        Exception: Whatever the function raises, unchanged.
    """
    given = tracker.given()
    sizes = None if opening is None else opening.sizes
    touched = Touched(frozenset(), frozenset())
    doubt = _if_all_are_written(given, signature)
    try:
        found = _once(run, tracker, signature, opening, touched, None)
    except (FirstStepError, SizeError):
        raise
    except Exception:
        if doubt is None:
            raise
        # Eager may not raise that: of these inputs none showed what was written to another.
        if sizes is not None:
            raise SizeError("Inputs share memory.", remedy="compile with dynamic=False.") from None
        found = _once(run, tracker, signature, opening, *doubt)
    while True:
        captured = found.captured
        touched = found.touched | touched_inputs(captured, found.effects.written)
        sharing = run("sharing", sharing_of, given, captured.lifted, touched, signature, sizes)
        if sharing.regions == captured.regions:
            return Settled(captured, found.effects, touched)
        found = _once(run, tracker, signature, opening, touched, sharing)


def _if_all_are_written(
    given: list[torch.Tensor], signature: Signature
) -> tuple[Touched, Sharing] | None:
    """What the arguments share if each of them is written to; None for nothing."""
    touched = Touched(frozenset(range(len(given))), frozenset())
    try:
        sharing = sharing_of(given, (), touched, signature, None)
    except UnsupportedError:
        return None
    return (touched, sharing) if sharing.is_of_several else None


def _once(
    run: Stages,
    tracker: StateTracker,
    signature: Signature,
    opening: Opening | None,
    touched: Touched,
    sharing: Sharing | None,
) -> Settled:
    """One run, with what is known of shared memory."""
    again = "" if sharing is None else " again"
    captured = run(
        f"capture{again}", _captured, tracker, signature, sharing=sharing, opening=opening
    )
    effects = run(f"effects{again}", analyse, captured, run.what)
    if sharing is None:
        run("effects", check_gradients, captured, effects, run.what)
    return Settled(captured, effects, touched)


def _captured(
    tracker: StateTracker,
    signature: Signature,
    *,
    sharing: Sharing | None = None,
    opening: Opening | None = None,
) -> Capture:
    """Run a call's function on a tape, once.

    Args:
        tracker: The function, its arguments, and what it stores.
        signature: The call's signature.
        sharing: Inputs that share memory, if an earlier run found that this matters.
        opening: What the program leaves open.

    Raises:
        UnsupportedError: For what can't be captured.
        Exception: Whatever the function raises, unchanged.
    """
    try:
        gradients, captured = _run_on_tape(tracker, signature, sharing, opening)
    except StateReadError:
        gradients, captured = _run_on_tape(tracker, signature, sharing, opening)
    arrays = [array for _, array in tracker.environment.arrays]
    captured.tape.outside_memory.refuse_changed(tracker.name)
    captured.tape.outside_memory.refuse_reached(arrays, tracker.name)
    attached = told_apart(captured.attached, tracker.environment, tracker.leaves, tracker.name)
    refuse_new_generators(tracker.name, tracker.environment, captured.tape.root, tracker.leaves)
    graded = gradients.effects(captured.lifted)
    return replace(captured, gradients=graded, attached=attached)


def _run_on_tape(
    tracker: StateTracker,
    signature: Signature,
    sharing: Sharing | None,
    opening: Opening | None,
) -> tuple[GradientTracker, Capture]:
    gradients = GradientTracker(
        tracker,
        tracker.leaves,
        tracker.name,
        tracker.as_they_are,
        follows_state=tracker.reads_states,
    )
    return gradients, capture(gradients, signature, tracker.leaves, tracker.name, sharing, opening)
