"""``set_``, which torch function modes don't see; the tape tells of it below autograd."""

from __future__ import annotations

from typing import Any

import torch

from funcaot._torch.distributed import collectives
from funcaot._torch.tracing import tracing
from funcaot.aot.capture.handlers.call import InProgress
from funcaot.errors import UnsupportedError

__all__ = ["note_new_storage"]


def note_new_storage(capture: InProgress, target: torch.Tensor, source: Any) -> None:
    """Note that a tensor is about to get the storage of another one.

    Raises:
        UnsupportedError: For what no effect says: a storage itself, memory that is shared already,
            a source with a derivative.
    """
    if not isinstance(source, torch.Tensor):
        if (sending := collectives.function_that_runs()) is not None:
            raise UnsupportedError(
                f"A compiled function calls torch.distributed's {sending}, which sends objects.",
                remedy="call it outside, and pass what it gives as an argument.",
            )
        raise UnsupportedError(
            f"{capture.name} calls set_ with a storage or without a source.",
            remedy="call x.set_(tensor).",
        )
    with tracing.without_torch_function():  # modes see the question, though not the call
        shared = tracing.storage_key(target) == tracing.storage_key(source)
    if shared:
        raise UnsupportedError(
            f"{capture.name} calls set_ on a tensor with one that shares its memory.",
            remedy="return the view instead.",
        )
    if torch.is_grad_enabled() and source.requires_grad:
        raise UnsupportedError(
            f"{capture.name} calls set_ with a tensor that requires grad; it has no derivative.",
            remedy="pass x.detach() to set_.",
        )
    if capture.slot_of(target) is not None:
        capture.events.keep_whole(target)
    capture.events.sources[id(target)] = source
    capture.events.reassigned.discard(id(target))
