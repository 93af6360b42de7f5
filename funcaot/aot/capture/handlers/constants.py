"""Arguments that torch differentiates by nothing: weights of classes, statistics, some targets.

In a trace for forward mode everything requires grad, which torch refuses of these. Tangents of
theirs aren't looked at in eager.
"""

from __future__ import annotations

import inspect
import re
from typing import Any

import torch

from funcaot.aot.capture.handlers.call import Call, InProgress

__all__ = ["run"]

_REFUSED = re.compile(r"is not differentiable with respect to argument '(\w+)'")


def run(call: Call, capture: InProgress) -> Any:
    """Run a call as it is; where torch refuses an argument that eager takes, as a constant."""
    while True:
        try:
            return call.run()
        except RuntimeError as error:
            again = _with_a_constant(call, capture, str(error))
            if again is None:
                raise
        call = again


def _with_a_constant(call: Call, capture: InProgress, text: str) -> Call | None:
    """The call with the argument detached that an error names; None if eager raises it, too."""
    found = _REFUSED.search(text) if capture.tape.is_at_level else None
    if found is None:
        return None
    try:
        names = list(inspect.signature(call.func).parameters)
    except (TypeError, ValueError):  # a builtin
        return None
    name = found[1]
    place = names.index(name) if name in names else len(call.args)
    value = call.args[place] if place < len(call.args) else call.kwargs.get(name)
    if not isinstance(value, torch.Tensor) or not value.requires_grad:
        return None
    slot = capture.slot_of(value)
    # In forward mode, what has a tangent isn't told from what requires grad.
    if slot is not None and slot.spec.requires_grad and not capture.forward_mode:
        return None
    if place < len(call.args):
        return call.given((*call.args[:place], value.detach(), *call.args[place + 1 :]))
    return Call(call.func, call.args, {**call.kwargs, name: value.detach()})
