"""A call of a function of torch in a capture, and the capture as handlers see it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any, TypeAlias

import torch

from funcaot._torch.tracing import tracing
from funcaot.aot.capture.events import InputEvents
from funcaot.aot.capture.facts import Facts
from funcaot.aot.signature.numbers import Numbers
from funcaot.aot.tape.memory import writes
from funcaot.aot.tape.tape import Tape

__all__ = ["Call", "Handler", "InProgress"]


@dataclass(frozen=True, eq=False)
class Call:
    """What is called with what.

    Attributes:
        func: The function of torch.
        args: Its arguments, with the tape's tensors.
        kwargs: Its keyword arguments.
    """

    func: Callable[..., Any]
    args: tuple[Any, ...]
    kwargs: dict[str, Any]

    @classmethod
    def of(cls, func: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> Call:
        """A call whose first argument is the tensor in question, also if it came by keyword."""
        call = cls(func, args, kwargs)
        by_keyword = "input" in kwargs and not args
        if by_keyword and (call.name == "as_strided" or writes.is_write(call.name)):
            others = {name: value for name, value in kwargs.items() if name != "input"}
            return cls(func, (kwargs["input"],), others)
        return call

    @cached_property
    def name(self) -> str:
        """The function's name; methods and functions of one op have the same."""
        return getattr(self.func, "__name__", "")

    @property
    def arguments(self) -> tuple[Any, ...]:
        """All arguments after the first, those by keyword last."""
        return (*self.args[1:], *self.kwargs.values())

    def given(self, args: tuple[Any, ...]) -> Call:
        """The same with other arguments."""
        return replace(self, args=args)

    def run(self) -> Any:
        """Run it as it is."""
        return self.func(*self.args, **self.kwargs)


@dataclass(eq=False)
class InProgress:
    """A capture in progress.

    Attributes:
        tape: Its tape.
        name: The user's function, for messages.
        grad_mode: Grad mode of the call.
        forward_mode: Whether the call's tensors may carry tangents.
        inputs: The inputs so far.
        numbers: Arguments that are open numbers, if there are any.
        events: What happened that can't be seen afterwards.
        facts: What the function read of real inputs.
    """

    tape: Tape
    name: str
    grad_mode: bool
    forward_mode: bool
    inputs: Sequence[Any]
    numbers: Numbers | None = None
    events: InputEvents = field(default_factory=InputEvents)
    facts: Facts = field(default_factory=Facts)

    def slot_of(self, tensor: torch.Tensor) -> Any:
        """The input that a tensor is; None for any other."""
        return next((slot for slot in self.inputs if slot.tensor is tensor), None)

    def is_in_an_input(self, tensor: torch.Tensor) -> bool:
        """Whether a tensor's memory is that of an input, whose storage may go on."""
        return bool(self.inputs_around(tensor))

    def inputs_around(self, tensor: torch.Tensor) -> list[Any]:
        """The inputs whose memory a strided tensor lies in."""
        key = tracing.storage_key(tensor)
        strided = [slot for slot in self.inputs if slot.spec.layout is torch.strided]
        return [slot for slot in strided if tracing.storage_key(slot.tensor) == key]

    def described(self, tensor: torch.Tensor) -> str:
        """Name a tensor for a message: as the input that it is, if it is one."""
        slot = self.slot_of(tensor)
        return f"a tensor {list(tensor.shape)}" if slot is None else str(slot)


# What a handler returns is the call's result. `NotImplemented` leaves the call to the next row;
# another `Call` goes to the next rows instead.
Handler: TypeAlias = Callable[[Call, InProgress], Any]
