"""Leave inference mode to trace: what derivatives are made of isn't made in it.

``aot`` calls this where it traces below a transform. A level records derivatives with inference
mode around it, as it does with grad mode off.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext

import torch

from funcaot._torch.levels.functorch import transforms_active

__all__ = ["as_made", "inference_mode_around_levels", "outside_inference_mode"]


def inference_mode_around_levels() -> bool:
    """Whether inference mode is on around a level, in which it is or which it has left for now.

    There its flag is off, but the dispatch keys are those of inference mode.
    """
    if torch._C._dispatch_tls_is_dispatch_key_included(torch._C.DispatchKey.ADInplaceOrView):
        return False
    return transforms_active() or not torch.is_inference_mode_enabled()


def as_made(example: torch.Tensor | None) -> AbstractContextManager[None]:
    """Where what stands for a tensor is made: in inference mode only if the tensor was.

    Others count what is written to them there, too.

    Args:
        example: The tensor; None for one that isn't known.
    """
    made_in_it = example is not None and example.is_inference()
    return nullcontext() if made_in_it else outside_inference_mode()


@contextmanager
def outside_inference_mode() -> Iterator[None]:
    """Leave it, and keep grad mode and forward mode, which torch would switch as well.

    The levels have to be left before: each brings back the dispatch keys that it was entered with.
    """
    grad_mode, forward_mode = torch.is_grad_enabled(), torch._C._is_fwd_grad_enabled()
    with torch.inference_mode(False), torch.set_grad_enabled(grad_mode):
        torch._C._set_fwd_grad_enabled(forward_mode)
        yield
