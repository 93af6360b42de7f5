"""Functions that can't be traced stay opaque: a node that runs them on real values.

While a capture is in progress in this thread, a forward that asks for data (NumPy, ``item``, a
branch on values, ``data_ptr``) is run once on the real values to learn what its outputs look like.
The node then runs it at every call and checks that they still look so.
"""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from types import FunctionType
from typing import Any, Protocol

import torch
from torch import fx

from funcaot.base.scopes import holding
from funcaot.classes.kept_values import are_same
from funcaot.classes.shared_views import View, is_plain
from funcaot.errors import RuleError, UnsupportedError

__all__ = [
    "Captor",
    "KeepsGraphError",
    "Layout",
    "MakesWrapperError",
    "Opaque",
    "OtherValueError",
    "Reachable",
    "Watch",
    "capturing",
    "current_captor",
    "current_watch",
    "forget_effects_after",
    "has_opaque_view",
    "is_forgotten",
    "layout_of",
    "watching",
]


_IS_OPAQUE = "_funcaot_is_opaque_view"


class MakesWrapperError(UnsupportedError):
    """A Function returns a tensor that wraps others: no node can stand for that."""


class KeepsGraphError(UnsupportedError):
    """A forward keeps a graph of autograd that it recorded itself: no node can stand for that.

    Attributes:
        leaves: Tensors from before the call that the graph leads to.
    """

    leaves: tuple[torch.Tensor, ...] = ()


class OtherValueError(Exception):
    """An opaque Function gives something besides tensors that it didn't give in the capture."""


@dataclass(frozen=True)
class Layout:
    """What one output of an opaque Function looks like."""

    shape: tuple[int, ...]
    stride: tuple[int, ...]
    dtype: torch.dtype
    device: torch.device

    def empty(self) -> torch.Tensor:
        """A tensor that looks so, with any values."""
        return torch.empty_strided(self.shape, self.stride, dtype=self.dtype, device=self.device)

    def conform(self, tensor: Any, name: str) -> torch.Tensor:
        """The tensor, copied to the expected strides where they differ.

        Raises:
            RuleError: If its shape, dtype or device isn't what it was.
        """
        found = layout_of(tensor) if isinstance(tensor, torch.Tensor) else None
        if found == self:
            return tensor
        if found is None or (found.shape, found.dtype, found.device) != (
            self.shape,
            self.dtype,
            self.device,
        ):
            raise RuleError(
                f"{name}, which runs on real values inside a compiled function, returned an output "
                "that doesn't look as it did when the function was captured.",
                expected=f"{self.dtype}{list(self.shape)} on {self.device}",
                got=type(tensor).__name__ if found is None else f"{found.dtype}{list(found.shape)}",
                remedy="keep the outputs' shapes and dtypes a function of the inputs' metadata.",
            )
        return self.empty().copy_(tensor)


def layout_of(tensor: torch.Tensor) -> Layout:
    """Read a tensor's layout."""
    return Layout(tuple(tensor.shape), tuple(tensor.stride()), tensor.dtype, tensor.device)


@dataclass
class Opaque:
    """Why a node is opaque, and what its outputs look like.

    Attributes:
        reason: Shown by the report.
        outputs: A layout per output; anything else is an output that isn't a tensor.
        single: Whether forward returns one output rather than a tuple.
        pending: What the run during the capture returned. The call that is being captured takes
            it, so that the Function runs once per call.
        keeps: Whether it hands on something besides tensors that a run may have another of.
        views: For an output in the memory of an operand or of an earlier output, which of these it
            is, counted as one row, and how it looks at that.
    """

    reason: str
    outputs: tuple[Any, ...]
    single: bool
    pending: tuple[Any, ...] | None = None
    keeps: bool = False
    views: tuple[tuple[int, View] | None, ...] = ()

    @classmethod
    def of(cls, output: Any, reason: str, operands: Sequence[Any] = ()) -> Opaque:
        """Describe what a run returned for operands."""
        single = not isinstance(output, tuple)
        values = (output,) if single else output
        described = tuple(layout_of(v) if isinstance(v, torch.Tensor) else v for v in values)
        row = (*operands, *values)
        places = range(len(operands), len(row))
        views = tuple(_view_of(row[place], row[:place]) for place in places)
        return cls(reason, described, single, views=views)

    def fake_output(self, operands: Sequence[Any]) -> Any:
        """An output that looks right; to be called where tensors are made fake.

        Args:
            operands: Those of the present call.
        """
        row = list(operands)
        for described, view in zip(self.outputs, self.views, strict=True):
            if view is not None and view[1].fits(row[view[0]]):
                made = view[1].of(row[view[0]])
                setattr(made, _IS_OPAQUE, True)
                row.append(made)
            else:
                row.append(described.empty() if isinstance(described, Layout) else described)
        outputs = tuple(row[len(operands) :])
        return outputs[0] if self.single else outputs

    def conform(self, output: Any, name: str) -> Any:
        """Check an output of a run on real values.

        Raises:
            RuleError: If it looks otherwise than in the capture.
            OtherValueError: If something that isn't a tensor is another thing.
        """
        values = (output,) if self.single else output
        if not isinstance(values, tuple) or len(values) != len(self.outputs):
            raise RuleError(
                f"{name}, which runs on real values inside a compiled function, returned another "
                "number of outputs than when the function was captured.",
                expected=str(len(self.outputs)),
                got=str(len(values)) if isinstance(values, tuple) else type(values).__name__,
                remedy="return the same number of outputs for inputs of the same metadata.",
            )
        for expected, value in zip(self.outputs, values, strict=True):
            if self.keeps and not isinstance(expected, Layout) and not are_same(expected, value):
                raise OtherValueError
        checked = tuple(
            expected.conform(value, name) if isinstance(expected, Layout) else value
            for expected, value in zip(self.outputs, values, strict=True)
        )
        return checked[0] if self.single else checked


def has_opaque_view(outputs: Iterable[Any]) -> bool:
    """Whether one of these is what an opaque Function returned in the memory of another tensor."""
    return any(getattr(output, _IS_OPAQUE, False) for output in outputs)


def _view_of(value: Any, others: Sequence[Any]) -> tuple[int, View] | None:
    """Which of other values has the memory of a value, and how this looks at it."""
    if is_plain(value):
        for index, other in enumerate(others):
            if is_plain(other) and (view := View.of_memory(value, other)) is not None:
                return index, view
    return None


class Watch(Protocol):
    """Looks at what a captured function changes in Python, and what Functions change in it.

    Attributes:
        called: For each Function its forward, and what it was given besides tensors.
    """

    called: list[tuple[Any, ...]]

    def following(self, *, traced: bool = False) -> contextlib.AbstractContextManager[Any]:
        """While a rule runs after a look: what its code reaches is looked at before it runs.

        Args:
            traced: Whether a tape has it, so that generators which it seeds are its own.
        """
        ...

    def look(self) -> Any:
        """What everything that the captured function reaches holds now."""
        ...

    def take_back(self, looked: Any) -> bool:
        """Undo what a rule changed since a look; whether there was something."""
        ...

    def leave(self, looked: Any) -> None:
        """What a forward counted or appended that ran for this call isn't the caller's."""
        ...

    def leave_of_backward(self, name: str, looked: Any, ran: set[Any]) -> None:
        """The same for a backward, of a Function of this name, before which some code had run."""
        ...

    def tensors(self) -> Iterator[torch.Tensor]:
        """All tensors that are reached."""
        ...

    def ran(self) -> set[Any]:
        """The user's code that has run in the capture so far."""
        ...

    def note_run(self, name: str, rule: Any, *, is_traced: bool) -> None:
        """A forward, which a watch looked at, ran; a node runs it again, or on real values."""
        ...

    def note_backward(self, name: str, rule: Any) -> None:
        """A backward, which a watch looks at, is going to run on real values in the call."""
        ...

    def noting_writes(self) -> contextlib.AbstractContextManager[Any]:
        """While forward runs on real tensors: those that it writes to hold this until the end."""
        ...

    def take_back_writes(self) -> None:
        """Undo what they wrote."""
        ...

    def generators(self) -> set[int]:
        """The generators of random numbers that it reaches, by where they are in memory."""
        ...


class Reachable(Protocol):
    """What a Function's backward may reach besides what it saved."""

    def entering(self) -> contextlib.AbstractContextManager[object]:
        """While such a backward runs: the capture's own tensors stand in the places of those."""
        ...

    def replace(self, value: Any) -> Any:
        """The tape's tensor for a real one, once its capture has ended; else the same."""
        ...

    def add_reader(self, reader: Callable[[], tuple[torch.Tensor, ...]]) -> None:
        """Take note of a backward that finds tensors by itself."""
        ...

    def note_path(self, functions: Iterable[FunctionType], names: Iterable[str]) -> None:
        """Take note of what leads to tensors that were made operands of a rule, which runs later.

        Args:
            functions: The rule, and functions that it calls.
            names: Variables and attributes.
        """
        ...


class Captor(Protocol):
    """A capture in progress, which can find out real values.

    Attributes:
        asked_by: What asks for the derivative that is traced: `levels`, `tangents` (of dual
            numbers, or to be pushed forward), or neither, which is empty.
        transposes: Whether it is a backward whose transpose is going to be forward mode.
        called_plainly: Whether a Function was called as in eager, so that it isn't a node.
        kept: For each Function that keeps for its backward a list, dictionary or set that it was
            given, its name and what these held.
    """

    asked_by: str
    transposes: bool
    called_plainly: bool
    kept: list[tuple[str, Any]]

    @property
    def graph(self) -> fx.Graph:
        """What it has recorded."""
        ...

    @property
    def root(self) -> torch.nn.Module:
        """What its graph holds besides tensors of the call."""
        ...

    @property
    def closed_over(self) -> Reachable:
        """What the backward of a Function that is called plainly may reach."""
        ...

    def severs(self, result: torch.Tensor, cotangents: Sequence[torch.Tensor]) -> bool:
        """Whether a gradient was computed from cotangents where autograd doesn't see it."""
        ...

    def real_values(self, tensors: Sequence[torch.Tensor]) -> list[torch.Tensor] | None:
        """The values of traced tensors in the call being captured, or None if unknown."""
        ...

    def refuse_open_sizes(self) -> None:
        """Refuse what is the same tensor for each size, where sizes are open."""
        ...

    def stand_ins(self, tensors: Sequence[torch.Tensor]) -> list[torch.Tensor]:
        """Tensors of ones that look like traced ones, to learn what comes out for them."""
        ...

    def exact_values(self, tensors: Sequence[torch.Tensor]) -> list[torch.Tensor] | None:
        """The same, with the random numbers that the call is going to draw."""
        ...

    def are_examples(self, tensors: Sequence[torch.Tensor]) -> bool:
        """Whether the values of traced tensors are those of one example of a batch."""
        ...

    def run(self, function: type, operands: tuple[Any, ...], noting: Any) -> Any:
        """Run a Function's forward on real operands, outside of every mode but what notes."""
        ...

    def outside(self, body: Callable[[], Any], given: Iterable[object] = ()) -> Any:
        """Run code on real tensors, outside of every mode and level; it draws nothing.

        Args:
            body: The code.
            given: What it was given; generators among that stay as they are, as torch's own do.
        """
        ...

    def call(self, function: type, *operands: Any) -> Any:
        """Call a Function through the operator."""
        ...

    def calling(self, function: type | None = None) -> contextlib.AbstractContextManager[None]:
        """While a Function is called, which switches grad mode off for its forward.

        Args:
            function: The Function, if it is called as in eager.
        """
        ...

    def running_rule(self) -> contextlib.AbstractContextManager[bool]:
        """While a Function's own backward runs; whether the captured function asked for it."""
        ...

    def stands_for(self, output: Any, operand: torch.Tensor) -> bool:
        """Whether a Function's output is an operand that it returned as it is."""
        ...

    def remember(self, outputs: Any, opaque: Opaque) -> None:
        """Note the real values behind the traced outputs of an opaque Function."""
        ...


_FORGOTTEN = "forgotten"


def forget_effects_after(node: fx.Node) -> None:
    """Leave what was recorded after a node to its users: an attempt is over that recorded it."""
    while (node := node.next).op != "root":
        node.meta[_FORGOTTEN] = True


def is_forgotten(node: fx.Node) -> bool:
    """Whether a node that nobody uses needn't run, whatever it does, as an attempt made it."""
    return _FORGOTTEN in node.meta


class _ThisThread(threading.local):
    captor: Captor | None = None
    watch: Watch | None = None


_this_thread = _ThisThread()


def current_captor() -> Captor | None:
    """The capture in progress in this thread."""
    return _this_thread.captor


@contextlib.contextmanager
def capturing(captor: Captor) -> Iterator[None]:
    """Let opaque Functions met inside ask ``captor`` for real values."""
    with holding(_this_thread, captor=captor):
        yield


def current_watch() -> Watch | None:
    """What looks at changes of the function that this thread captures."""
    return _this_thread.watch


@contextlib.contextmanager
def watching(watch: Watch) -> Iterator[None]:
    """While a captured function runs, whose changes ``watch`` looks at."""
    with holding(_this_thread, watch=watch):
        yield
