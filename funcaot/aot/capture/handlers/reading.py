"""A function reads what only the real inputs know: how often they were written to, their base."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from funcaot._torch.autograd.autograd import version_of
from funcaot._torch.tracing import tracing
from funcaot.aot.capture.handlers.call import Call, InProgress
from funcaot.classes import premise
from funcaot.classes.addresses import Address
from funcaot.errors import UnsupportedError

__all__ = [
    "BASE",
    "HOOKS",
    "OUTPUT_NUMBER",
    "POINTERS",
    "RETAINS_GRAD",
    "TOLD",
    "VERSION",
    "compare_addresses",
    "note_layout",
    "read_base",
    "read_version",
    "refuse_hooks",
    "refuse_places",
    "refuse_pointer",
    "tell",
]

_TENSOR: Any = torch.Tensor
BASE = _TENSOR._base.__get__
VERSION = _TENSOR._version.__get__
HOOKS = {
    "_backward_hooks": _TENSOR._backward_hooks.__get__,
    "_post_accumulate_grad_hooks": _TENSOR._post_accumulate_grad_hooks.__get__,
}
OUTPUT_NUMBER = _TENSOR.output_nr.__get__
RETAINS_GRAD = _TENSOR.retains_grad.__get__
# Methods of which an input's answer is that of the real one.
TOLD = ("_is_view", "is_pinned", "is_shared", "is_inference")
POINTERS = ("const_data_ptr", "mutable_data_ptr")


def tell(name: str) -> Callable[[Call, InProgress], Any]:
    """A handler that says of an input what is so of the real one."""

    def told(call: Call, capture: InProgress) -> Any:
        seen = call.args[0]
        return capture.facts.read(seen, name) if capture.facts.know(seen) else NotImplemented

    return told


def note_layout(call: Call, capture: InProgress) -> Any:
    """Strides are compared in each call of a program, but an artifact takes any."""
    capture.events.reads_layout = True
    return NotImplemented


def read_version(call: Call, capture: InProgress) -> Any:
    """How often an input's memory was written to, before and in the call."""
    seen = call.args[0]
    found = _entered_in(seen, capture)
    if not found:
        return NotImplemented
    slot = next((slot for slot in found if slot.tensor is seen), found[0])
    before = capture.facts.read(slot.tensor, "_version")
    if before is None:
        raise RuntimeError("Inference tensors do not track version counter.")
    return before + version_of(seen) - slot.version


def read_base(call: Call, capture: InProgress) -> Any:
    """What a tensor is a view of, where that is a tensor of the function.

    Raises:
        UnsupportedError: For an input that is a view of something outside, and for its views.
    """
    for slot in _entered_in(call.args[0], capture):
        if capture.facts.read(slot.tensor, "is_inference"):
            return None  # Views of it don't know what they are views of.
        if capture.facts.read(slot.tensor, "_is_view"):
            raise UnsupportedError(
                f"{capture.name} asks for the ._base of an input that is a view, or of a view of "
                "one; a capture doesn't have the tensor that it is a view of.",
                remedy="ask outside, and pass the base as an argument.",
            )
    return NotImplemented


def refuse_hooks(name: str) -> Callable[[Call, InProgress], Any]:
    """A handler that lets a function see that an input has no hooks; it refuses those that are."""

    def refuse(call: Call, capture: InProgress) -> Any:
        seen = call.args[0]
        if capture.facts.know(seen) and capture.facts.read(seen, name):
            raise UnsupportedError(
                f"{capture.name} looks at the hooks of an input ({name}), which aren't compared "
                "in later calls.",
                remedy="look at them outside of the compiled function.",
            )
        return NotImplemented

    return refuse


def refuse_pointer(call: Call, capture: InProgress) -> Any:
    """An address.

    Raises:
        UnsupportedError: Always.
    """
    raise UnsupportedError(
        f"{capture.name} asks for the address of a tensor ({call.name}), which has none while it "
        "is captured.",
        remedy="ask outside of the compiled function.",
    )


def compare_addresses(call: Call, capture: InProgress) -> Any:
    """``data_ptr()``, which code compares to see whether something is a copy."""
    (tensor,) = call.args
    allowed = premise.are_allowed() and type(tensor) is tracing.FunctionalTensor
    if not allowed or tensor.layout is not torch.strided or not tensor.numel():
        return NotImplemented
    return Address(tensor, capture.name, capture.is_in_an_input)


def refuse_places(call: Call, capture: InProgress) -> Any:
    """Whether two tensors lie at one place, which is known of one and the same.

    Raises:
        UnsupportedError: If both lie in inputs.
    """
    tensors = [*call.args, *call.kwargs.values()][:2]
    if tensors[0] is tensors[-1]:
        # Of what is marked as negated or conjugated, torch compares copies.
        return not (tensors[0].is_neg() or tensors[0].is_conj())
    if all(map(capture.is_in_an_input, tensors)):
        raise UnsupportedError(
            f"{capture.name} asks whether two tensors lie at one place (is_set_to).",
            remedy="ask outside of the compiled function.",
        )
    return NotImplemented


def _entered_in(seen: torch.Tensor, capture: InProgress) -> list[Any]:
    """The inputs that a tensor's memory is that of; those without strides only if it is one."""
    if capture.facts.know(seen):
        return [slot for slot in capture.inputs if slot.tensor is seen]
    if seen.layout is not torch.strided:
        return []
    return [slot for slot in capture.inputs_around(seen) if capture.facts.know(slot.tensor)]
