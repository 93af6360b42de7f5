"""What a function does to wrappers among its inputs and outputs, as far as a call can replay it.

A wrapper that comes out is made around results of the graph, and around inner tensors of inputs
that are passed on as they are. What else shares memory, and what writes to a wrapper, is refused.
"""

from __future__ import annotations

from collections.abc import Iterator

import torch

from funcaot._torch.autograd import autograd
from funcaot._torch.tracing import tracing
from funcaot.aot.capture.capture import Capture, Input
from funcaot.aot.subclasses.nodes import is_wrapped
from funcaot.aot.subclasses.refusals import level_refusal
from funcaot.aot.tape.tape import Tape
from funcaot.aot.tape.wrappers import is_wrapper, leaves_of
from funcaot.errors import UnsupportedError

__all__ = ["Memory", "refuse_written"]


def refuse_written(tape: Tape, slot: Input, name: str) -> None:
    """Refuse a function that writes to a wrapper that it is given.

    Raises:
        UnsupportedError: If it does, or if it gives it other inner tensors.
    """
    node = tape.node_of(slot.tensor)
    if node is None or is_wrapped(node) or autograd.version_of(slot.tensor) != slot.version:
        kind = type(slot.tensor).__name__
        raise UnsupportedError(
            f"{name} writes to {slot}, a tensor subclass {kind}, in place.",
            remedy="return the new value, and write it to the tensor outside: x.copy_(f(x)).",
        )
    if slot.tensor.requires_grad != slot.spec.requires_grad:
        raise UnsupportedError(
            f"{name} changes whether {slot} requires grad.",
            remedy="call requires_grad_() or detach_() on a tensor subclass outside.",
        )


class Memory:
    """The memory inside of wrappers that come in and go out."""

    def __init__(self, capture: Capture, name: str) -> None:
        """Look at all of it.

        Args:
            capture: What the function did.
            name: The user's function, for messages.

        Raises:
            UnsupportedError: If there are wrappers at a level of a transform.
        """
        inputs, outputs, tape = capture.inputs, capture.outputs, capture.tape
        self.name = name
        self._at_level = tape.is_at_level
        if self._at_level and tape.wrappers.used:
            raise level_refusal(name)
        self._owners: dict[int, tuple[torch.Tensor, str]] = {}
        self._given: list[torch.Tensor] = []
        for slot in inputs:
            if slot.spec.structure is None:
                # What was written to it is a result, which isn't the input.
                self._given += [slot.tensor] if tape.node_of(slot.tensor) is slot.node else []
            else:
                self._given += leaves_of(slot.tensor)
                for key, part in _storages(slot.tensor):
                    self._owners.setdefault(key, (part, f"a part of {slot}"))
        self._inputs = frozenset(self._owners)
        for value in outputs:
            if is_wrapper(value) and not any(value is slot.tensor for slot in inputs):
                for key, part in _storages(value):
                    self._owners.setdefault(key, (part, "another result"))

    def check(self, value: torch.Tensor, plain: dict[int, list[int]]) -> None:
        """Refuse a result that shares memory in a way that a call can't make.

        Args:
            value: The result, a wrapper or not.
            plain: Inputs that are plain tensors, by storage.

        Raises:
            UnsupportedError: If it does.
        """
        if is_wrapper(value) and self._at_level:
            raise level_refusal(self.name)
        if is_wrapper(value) and (value.is_conj() or value.is_neg()):
            raise UnsupportedError(
                f"{self.name} returns a {type(value).__name__} with a conjugate or negative bit.",
                remedy="return x.resolve_conj() or x.resolve_neg().",
            )
        if not self._owners or value.layout not in (torch.strided, torch.jagged):
            return
        for key, part in _storages(value):
            whole, owner = self._owners.get(key, (part, ""))
            if is_wrapper(value) and any(part is given for given in self._given):
                continue
            if not is_wrapper(value) and key in self._inputs:
                self._refuse(value, owner)
            if part is not whole:
                self._refuse(value, owner)
            if is_wrapper(value) and key in plain:
                self._refuse(value, "an input")

    def _refuse(self, value: torch.Tensor, owner: str) -> None:
        kind = f"a {type(value).__name__}" if is_wrapper(value) else "a tensor"
        raise UnsupportedError(
            f"{self.name} returns {kind} that shares memory with {owner}, through a tensor "
            "subclass.",
            remedy="return a clone, or make the view outside of the compiled function.",
        )


def _storages(value: torch.Tensor) -> Iterator[tuple[int, torch.Tensor]]:
    for part in leaves_of(value):
        if part.layout is torch.strided:
            yield tracing.storage_key(part), part
