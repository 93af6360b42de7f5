"""The shape of a tensor is changed in place: what it showed before is kept, or it is refused."""

from __future__ import annotations

import math
from typing import Any

import torch

from funcaot._torch.levels import functorch
from funcaot._torch.tensors.sizes.shapes import SizeError, suggested_format
from funcaot._torch.tracing import tracing
from funcaot._torch.tracing.functional_values import make_growable, shares_memory
from funcaot.aot.capture.handlers.call import Call, InProgress
from funcaot.aot.capture.handlers.memory.placing import leaves_its_place
from funcaot.aot.graph.tensor_spec import is_dense
from funcaot.aot.tape.memory import writes
from funcaot.errors import UnsupportedError

__all__ = ["refuse_fixed", "reshape"]

_RESIZING = frozenset(("resize_",))


def reshape(call: Call, capture: InProgress) -> Any:
    """``t_``, ``squeeze_``, ``as_strided_``, ``resize_`` and the like."""
    if call.name == "resize_as_":
        call = _by_shape(call)
        reshape(call, capture)
        return call.run()
    given, events = call.args[0], capture.events
    call = _of_what_changes(call, capture)
    tensor = call.args[0]
    _note(call, capture)
    if (
        tensor is given
        and call.name == "as_strided_"
        and leaves_its_place(*call.args, **call.kwargs)
    ):
        events.placed.append(tensor)
    if tensor._is_view() and tensor.requires_grad and torch.is_grad_enabled():
        _refuse_placed(call, capture)
        events.turned.add(id(tensor._base))
    _refuse(call, capture)
    if call.name in _RESIZING:
        events.resized.add(id(tensor))
        if _grows(call, capture):
            return NotImplemented
    events.keep_whole(tensor)
    return NotImplemented


def _by_shape(call: Call) -> Call:
    """``resize_as_`` as ``resize_``: functionalization takes the former to keep the size."""

    def resized(
        tensor: torch.Tensor,
        the_template: torch.Tensor,
        *,
        memory_format: torch.memory_format | None = None,
    ) -> Call:
        if memory_format is torch.preserve_format:
            memory_format = suggested_format(the_template)
        formats = {} if memory_format is None else {"memory_format": memory_format}
        return Call(torch.Tensor.resize_, (tensor, tuple(the_template.shape)), formats)

    return resized(*call.args, **call.kwargs)


def _of_what_changes(call: Call, capture: InProgress) -> Call:
    """The change of the tensor behind what an inner ``vmap`` batches, which has other dimensions.

    Raises:
        UnsupportedError: If it is resized.
    """
    tensor = call.args[0]
    if not functorch.is_batchedtensor(tensor):
        return call
    if call.name in _RESIZING:
        raise UnsupportedError(
            f"{capture.name} calls {call.name} on a tensor that a vmap inside of it batches.",
            remedy="return a new tensor of that shape.",
        )
    return Call(torch.Tensor.as_strided_, (functorch.without_batches(tensor),), {})


def _note(call: Call, capture: InProgress) -> None:
    """Note the change itself, by which others can follow it."""
    tensor, events = call.args[0], capture.events
    known = events.reshapes.get(id(tensor), ())
    if known is not None and call.name in writes.BY_DIMENSIONS:
        events.reshapes[id(tensor)] = (*known, (call.name, call.arguments))
    else:
        events.reshapes[id(tensor)] = None
    events.history.note(call.name, tensor, call.arguments)


def _refuse(call: Call, capture: InProgress) -> None:
    """Refuse a change that an effect can't say.

    Raises:
        UnsupportedError: For such a change.
    """
    tensor = call.args[0]
    resizes = call.name in _RESIZING
    shrinks = resizes and not is_dense(tuple(tensor.shape), tuple(tensor.stride()))
    if shrinks or id(tensor) in capture.events.detached:
        raise UnsupportedError(
            f"{capture.name} calls {call.name} on a tensor "
            + ("with gaps." if shrinks else "that it detached in place."),
            remedy="return a new tensor of that shape.",
        )
    refuse_fixed(call, capture)
    hidden = not torch.is_grad_enabled() and tensor.requires_grad
    if hidden and (capture.grad_mode or not _is_leaf(tensor)):
        raise UnsupportedError(
            f"{capture.name} calls {call.name} in no_grad mode on a tensor that requires grad.",
            remedy="call it with grad mode on, or return the changed tensor instead.",
        )


def _refuse_placed(call: Call, capture: InProgress) -> None:
    """Refuse that ``as_strided`` views of a base take a new history from it.

    Eager then differentiates them by the base, in which they show what lies between the elements
    of the view that they were made of. Made again from that view, they don't.

    Raises:
        UnsupportedError: If there may be such a view.
    """
    tensor = call.args[0]
    if not capture.events.placed or not capture.is_in_an_input(tensor):
        return
    strided = [other for other in capture.events.placed if other.layout is torch.strided]
    if tracing.storage_key(tensor) in map(tracing.storage_key, strided):
        raise UnsupportedError(
            f"{capture.name} calls {call.name} on a view, after a place in its memory was named "
            "(as_strided, storage_offset).",
            remedy="return the changed tensor instead (x.t() for x.t_(), and so on).",
        )


def refuse_fixed(call: Call, capture: InProgress) -> None:
    """Refuse to change what other inputs are views of.

    Raises:
        UnsupportedError: If the call's tensor is such an input.
    """
    if id(call.args[0]) in capture.events.fixed:
        raise UnsupportedError(
            f"{capture.name} calls {call.name} on an input that another input is a view of, and "
            "writes to one of them.",
            remedy="return the changed tensor instead (x.t() for x.t_(), and so on).",
        )


def _grows(call: Call, capture: InProgress) -> bool:
    """Whether a tensor is resized to more elements; its storage is made to allow that.

    Raises:
        UnsupportedError: If others see its memory.
    """
    tensor = call.args[0]
    if _count(call.args[1:]) <= tensor.numel():
        return False
    slot = capture.slot_of(tensor)
    member = slot is not None and slot.kind != "plain"
    if member or shares_memory(tensor):
        kind = "an input" if member else "a tensor"
        lone_view = tensor._is_view() and not member
        what = "a view" if lone_view else f"{kind} that shares memory with another"
        raise UnsupportedError(
            f"{capture.name} calls {call.name} on {what} and asks for more elements.",
            remedy="return a new tensor of that shape.",
        )
    capture.events.grown.add(id(tensor))
    make_growable(tensor)
    return True


def _count(shape: tuple[Any, ...]) -> int:
    sizes = shape[0] if len(shape) == 1 and isinstance(shape[0], tuple | list) else shape
    if any(isinstance(size, torch.SymInt) for size in sizes):
        raise SizeError("resize_ to an open size.", remedy="compile with dynamic=False.")
    return math.prod(size for size in sizes if isinstance(size, int))


def _is_leaf(tensor: torch.Tensor) -> bool:
    try:
        return tensor.is_leaf
    except RuntimeError:
        # A view made in no_grad whose base was written to: autograd forbids to look.
        return False
