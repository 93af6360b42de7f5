"""Batches with padding, of which ``nn.TransformerEncoder`` makes a strided nested tensor.

It does so in evaluation mode without gradients, by a mask that lets each row begin. Padding then
comes out as zeros. In a capture the layer would take its other way, since a mode is active.
"""

from __future__ import annotations

import sys

import torch

from funcaot._torch.tensors.sizes.ragged import BEGINS_EACH_ROW
from funcaot.aot.capture.handlers.call import Call, InProgress
from funcaot.aot.subclasses.refusals import EagerOnlyError

__all__ = ["BEGINS_EACH_ROW", "leave_to_eager"]

_ENCODER = torch.nn.TransformerEncoder.forward.__code__


def leave_to_eager(call: Call, capture: InProgress) -> bool:
    """Whether a mask lets each row begin, where it matters to the encoder; else that doesn't show.

    Torch's own function says something of a symbolic tensor, too, and knows nothing.

    Raises:
        EagerOnlyError: It would make a nested tensor.
    """
    mask = call.arguments[0]
    if not _goes_on() or not bool((mask[:, 1:] <= mask[:, :-1]).all()):
        return False
    raise EagerOnlyError(
        f"{capture.name} calls nn.TransformerEncoder with a mask for padding, in evaluation "
        "mode and without gradients, where torch packs the batch into a nested tensor.",
        remedy="make it with enable_nested_tensor=False; padding isn't zeros then.",
    )


def _goes_on() -> bool:
    """Whether nothing else keeps the encoder that asks from packing."""
    frame = sys._getframe(1)
    while frame is not None and frame.f_code is not _ENCODER:
        frame = frame.f_back
    if frame is None or torch.is_autocast_enabled():
        return False
    local = frame.f_locals
    if local.get("mask") is not None:
        return False
    if not torch.is_grad_enabled():
        return True
    given = (local["src"], *local["first_layer"].parameters())
    return not any(each.requires_grad for each in given)
