"""An op writes to a tensor, or runs on lists: versions are counted, what it saves is noted."""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F

from funcaot._torch.tensors.pytree import tree_flatten
from funcaot._torch.tensors.recurrent import without_cudnn
from funcaot.aot.capture.handlers import constants
from funcaot.aot.capture.handlers.call import Call, InProgress
from funcaot.aot.tape.memory import writes
from funcaot.aot.tape.wrappers import is_wrapper
from funcaot.errors import UnsupportedError

__all__ = [
    "NORMALIZING",
    "is_of_lists",
    "normalize",
    "note_saved",
    "on_lists",
    "write",
    "write_polygamma",
    "write_to_lists",
]

# They may run kernels of cuDNN, which update running statistics and don't say so.
NORMALIZING = frozenset({F.batch_norm, F.instance_norm, torch.batch_norm, torch.instance_norm})


def is_of_lists(call: Call) -> bool:
    """Whether an op writes to lists of tensors, none of which wraps others."""
    if not (call.name.startswith(("_foreach_", "_fused_")) and call.name.endswith("_")):
        return False
    several = bool(call.args) and isinstance(call.args[0], list | tuple)
    return not (several and any(map(is_wrapper, call.args[0])))


def write_to_lists(call: Call, capture: InProgress) -> Any:
    """An optimizer's ops on all parameters together."""
    if call.name.startswith("_foreach_") and writes.share_memory(call.args[0]):
        return writes.one_by_one(call.func, call.args, call.kwargs)
    if not torch.is_grad_enabled():
        return writes.counted(call.args[0], call.run)
    return writes.recorded_of_lists(
        capture.tape, _tensors_of(call), lambda: writes.counted(call.args[0], call.run)
    )


def on_lists(call: Call) -> bool:
    """Whether an op runs on lists of tensors."""
    return call.name.startswith("_foreach_")


def note_saved(call: Call, capture: InProgress) -> Any:
    """Note what such an op saves, for which its node of autograd has no names."""
    if not torch.is_grad_enabled():
        return NotImplemented
    return writes.recorded_of_lists(capture.tape, _tensors_of(call), call.run)


def _tensors_of(call: Call) -> list[torch.Tensor]:
    given = tree_flatten((call.args, call.kwargs))[0]
    return [value for value in given if isinstance(value, torch.Tensor)]


def normalize(call: Call, capture: InProgress) -> Any:
    """Normalize by torch's own kernel, whose writes are known."""
    with without_cudnn():
        return constants.run(call, capture)


def write_polygamma(call: Call, capture: InProgress) -> Call:
    """``polygamma_``, which torch can't make functional."""
    target, (order,) = call.args[0], call.arguments
    return Call(torch.Tensor.copy_, (target, torch.polygamma(order, target)), {})


def write(call: Call, capture: InProgress) -> Any:
    """Any other write; one to a view is recorded with what autograd saves.

    Raises:
        UnsupportedError: To a part of a conjugate.
    """
    target = call.args[0] if call.args else None
    if not isinstance(target, torch.Tensor):
        return NotImplemented
    by_index = call.name == "__setitem__"
    if not (torch.is_grad_enabled() and (by_index or target._is_view())):
        return NotImplemented
    given = (*call.args, *call.kwargs.values())
    operands = [value for value in given if isinstance(value, torch.Tensor)]
    base = target if target._base is None else target._base
    recorded = any(operand.requires_grad for operand in (base, *operands))
    if recorded and base.is_conj() and not target.is_complex():
        raise UnsupportedError(
            f"{capture.name} writes to the real or imaginary part of {capture.described(base)}, "
            "which is the conjugate of another tensor by its memory.",
            remedy="pass the tensor itself and call conj() inside, or pass x.resolve_conj().",
        )
    return writes.recorded(capture.tape, target, operands, call.run)
