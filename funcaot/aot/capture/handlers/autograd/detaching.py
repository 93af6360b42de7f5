"""A tensor leaves autograd, by ``detach``, by ``.data`` or in place, or enters it.

Compressed sparse tensors may not enter: a capture can't record them.
"""

from __future__ import annotations

from typing import Any

import torch

from funcaot._torch.autograd import autograd
from funcaot._torch.autograd.compressed import refuse_compressed
from funcaot._torch.autograd.op_kernels import give_memory
from funcaot._torch.levels import functorch
from funcaot._torch.tracing import tracing
from funcaot.aot.capture.handlers.call import Call, InProgress
from funcaot.aot.capture.handlers.memory.reshaping import refuse_fixed
from funcaot.aot.subclasses.structure import is_wrapper
from funcaot.errors import UnsupportedError

__all__ = [
    "COMPRESSING",
    "compress",
    "detach",
    "read_data",
    "set_data",
    "set_requiring_grad",
    "start_or_stop_requiring_grad",
]

_TENSOR = torch.Tensor
# What makes compressed sparse tensors, and of which layout; None for that which it is given.
COMPRESSING = {
    "to_sparse": None,
    "sparse_compressed_tensor": None,
    "to_sparse_csr": torch.sparse_csr,
    "to_sparse_csc": torch.sparse_csc,
    "to_sparse_bsr": torch.sparse_bsr,
    "to_sparse_bsc": torch.sparse_bsc,
    "sparse_csr_tensor": torch.sparse_csr,
    "sparse_csc_tensor": torch.sparse_csc,
    "sparse_bsr_tensor": torch.sparse_bsr,
    "sparse_bsc_tensor": torch.sparse_bsc,
}


def start_or_stop_requiring_grad(call: Call, capture: InProgress) -> Any:
    """``detach_`` and ``requires_grad_``.

    Raises:
        UnsupportedError: On what other inputs are views of; in forward mode for ``detach_`` of what
            carries a tangent, which no node of the tape says; of a compressed sparse tensor for
            ``requires_grad_``.
        RuntimeError: For ``detach_`` of an input that is a view, as eager torch says.
    """
    refuse_fixed(call, capture)
    if call.name == "detach_":
        seen = call.args[0]
        if capture.facts.know(seen) and capture.facts.read(seen, "_is_view"):
            raise RuntimeError("Can't detach views in-place. Use detach() instead.")
        if capture.forward_mode and call.args[0].requires_grad:
            raise UnsupportedError(
                f"{capture.name} calls detach_ in forward mode.",
                remedy="use x.detach() instead of x.detach_().",
            )
        capture.events.detached.add(id(call.args[0]))
    else:
        tensor, *said = call.args
        wanted = said[0] if said else call.kwargs.get("requires_grad", True)
        refuse_compressed(tensor.layout, requires_grad=bool(wanted))
    return NotImplemented


def set_requiring_grad(call: Call, capture: InProgress) -> Any:
    """``x.requires_grad = value``.

    Raises:
        UnsupportedError: Of a compressed sparse tensor, if it is to require grad.
    """
    refuse_compressed(call.args[0].layout, requires_grad=bool(call.args[1]))
    return NotImplemented


def compress(call: Call, capture: InProgress) -> Any:
    """A sparse tensor is made in a compressed layout.

    Raises:
        UnsupportedError: At a level of a transform, where autograd would record it unseen.
    """
    given = [value for value in (*call.args, *call.kwargs.values()) if isinstance(value, _TENSOR)]
    if any(map(functorch.is_functorch_wrapped_tensor, given)):
        layout = COMPRESSING[call.name] or call.kwargs.get("layout", torch.sparse_coo)
        refuse_compressed(layout, requires_grad=True)
    return NotImplemented


def detach(call: Call, capture: InProgress) -> Any:
    """``detach``: writes through its result are seen by the tensor that it came from."""
    result = call.run()
    capture.tape.detached_writes.detach(result, None)
    return result


def read_data(call: Call, capture: InProgress) -> Any:
    """``x.data``, which loses tangents too."""
    result, source = call.run(), call.args[0]
    capture.tape.detached_writes.detach(result, source if capture.forward_mode else None)
    capture.events.reads_data |= source.requires_grad
    return result


def set_data(call: Call, capture: InProgress) -> Any:
    """``x.data = value``: x gets the memory of the value, and its version stays.

    Raises:
        UnsupportedError: Where that can't be replayed.
    """
    target, value = call.args
    if target is value or _is_same_memory(target, value):
        return None
    why = _unlike(target, value, capture)
    if why:
        raise UnsupportedError(
            f"{capture.name} assigns to the .data of a tensor {why}.",
            remedy="write x.copy_(value) under torch.no_grad(), or do it outside.",
        )
    version = autograd.version_of(target)
    give_memory(target, value.detach())
    autograd.set_version(target, version)
    capture.events.reassigned.add(id(target))
    return None


def _unlike(target: torch.Tensor, value: Any, capture: InProgress) -> str | None:
    """Why a tensor can't be given the memory of another one."""
    if capture.forward_mode:
        return "in forward mode"
    if not isinstance(value, torch.Tensor):
        return None
    for kind in ("dtype", "device", "layout"):
        if getattr(target, kind) != getattr(value, kind):
            return f"one of another {kind}"
    if target.layout is not torch.strided or is_wrapper(target) or is_wrapper(value):
        return "that isn't strided"
    return "a view of its own memory" if _shares_memory(target, value) else None


def _shares_memory(target: torch.Tensor, value: torch.Tensor) -> bool:
    with tracing.without_torch_function():
        return tracing.storage_key(target) == tracing.storage_key(value)


def _is_same_memory(target: torch.Tensor, value: torch.Tensor) -> bool:
    """Whether a tensor is given what it shows already."""
    places = [(x.shape, x.stride(), x.storage_offset(), x.dtype) for x in (target, value)]
    return places[0] == places[1] and _shares_memory(target, value)
