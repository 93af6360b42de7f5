"""What a backward does to tensors that aren't its own: found when traced, replayed when run.

The rules. Data of a forward input, and of a grad_output, may be overwritten. Shapes and storages
may not, nor what the forward computed and kept: that is an error when the backward is traced. A
mutated input that requires grad is an error when the backward runs with grad mode on, since a
derivative of that run would have to know of the write.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import fx

from funcaot._torch.autograd import autograd
from funcaot._torch.autograd.nodes import autograd_nodes
from funcaot._torch.levels.functorch import is_functorch_wrapped_tensor
from funcaot._torch.tracing import tracing
from funcaot._torch.tracing.functional_values import replace_value
from funcaot.aot.capture.capture import geometry_of
from funcaot.aot.graph.tensor_spec import spec_of
from funcaot.aot.segment.segment import Segment
from funcaot.aot.tape.frontier import tensors_of
from funcaot.aot.tape.tape import Tape
from funcaot.aot.tape.wrappers import is_wrapper, leaves_of
from funcaot.errors import UnsupportedError


@dataclass(frozen=True)
class BackwardMutation:
    """A tensor that a backward overwrites.

    Attributes:
        operand: Which operand of the forward it is, or None for a grad_output.
        tangent: Which of the grad_outputs that are given it is, or None.
        value: Position of its new value among the backward's results.
        versions: In-place changes that its version counts.
        name: For messages.
        requires_grad: Whether it required grad when the forward ran.
    """

    operand: int | None
    tangent: int | None
    value: int
    versions: int
    name: str
    requires_grad: bool


@dataclass(frozen=True, eq=False)
class Write:
    """A change that was found on the tape: what changed, from which node to which value."""

    operand: int | None
    tangent: int | None
    before: fx.Node
    value: torch.Tensor
    versions: int
    name: str
    requires_grad: bool


def check_grad_mode(mutations: Sequence[BackwardMutation], function: str) -> None:
    """Refuse to write to inputs that require grad in a backward that is itself recorded.

    Raises:
        UnsupportedError: If there is one; the message lists them.
    """
    names = [mutation.name for mutation in mutations if mutation.requires_grad]
    if names and torch.is_grad_enabled():
        raise UnsupportedError(
            f"A backward inside {function} writes to {', '.join(names)}, which requires grad, and "
            "runs with create_graph=True.",
            remedy="run it without create_graph, or return a new tensor instead of writing.",
        )


def replay(
    mutations: Sequence[BackwardMutation],
    held: dict[int, torch.Tensor],
    tangents: Sequence[torch.Tensor],
    results: Sequence[Any],
) -> None:
    """Write the new values after a backward has run."""
    for mutation in mutations:
        if mutation.operand is not None:
            target = held[mutation.operand]
        else:
            target = tangents[mutation.tangent or 0]
        version = autograd.version_of(target) + mutation.versions
        with torch.no_grad():
            target.copy_(results[mutation.value])
        if not tracing.transforms_active() and not target.is_inference():
            autograd.set_version(target, version)


def reachable(segment: Segment, seen: Sequence[torch.Tensor | None]) -> tuple[int, ...]:
    """Operands that a custom backward can get hold of, so that it might write to them."""
    storages = {
        tracing.storage_key(tensor)
        for kept in _kept_by_functions(segment)
        for tensor in leaves_of(kept)
        if not is_functorch_wrapped_tensor(tensor) and tensor.layout is torch.strided
    }
    if not storages:
        return ()
    return tuple(
        index
        for index, tensor in enumerate(seen)
        if tensor is not None
        and tensor.layout is torch.strided
        and tracing.storage_key(tensor) in storages
    )


def _kept_by_functions(segment: Segment) -> Iterator[torch.Tensor]:
    with segment.tape.recording(grad_mode=False):
        for node in autograd_nodes(segment.graph_outputs):
            if hasattr(type(node), "saved_tensors"):
                yield from (tensor for tensor, _ in tensors_of(node))


@dataclass(frozen=True, eq=False)
class _State:
    """A tensor of the tape before a backward is traced."""

    tensor: torch.Tensor
    node: fx.Node
    inner: torch.Tensor
    geometry: tuple[Any, ...]
    version: int
    grad_fn: Any
    name: str
    operand: int | None = None
    tangent: int | None = None
    requires_grad: bool = False


def refuse_spoiled(tape: Tape) -> None:
    """Raise what an earlier backward of a tape was refused for.

    Raises:
        UnsupportedError: If one was.
    """
    if tape.spoiled is not None:
        raise UnsupportedError(
            tape.spoiled,
            remedy="compute a new tensor there; only the data of an input or of a grad_output can "
            "be written to in a backward.",
        )


class Snapshot:
    """The tape's tensors before a backward is traced, to tell what it changed and undo that."""

    def __init__(self, segment: Segment, placeholders: Sequence[torch.Tensor]) -> None:
        """Look at the forward's inputs, the grad_outputs, and what custom Functions kept."""
        refuse_spoiled(segment.tape)
        self._segment = segment
        self._tape = segment.tape
        self._states: list[_State] = []
        storages: set[int] = set()
        with self._tape.recording(grad_mode=False):
            for index, tensor in enumerate(segment.seen):
                if tensor is not None:
                    leaf = segment.operands[index].leaf
                    name = f"input {index} ({spec_of(tensor)})"
                    self._add(storages, tensor, name, operand=index, requires_grad=leaf is not None)
            for index, tensor in enumerate(placeholders):
                self._add(storages, tensor, f"grad_output {index}", tangent=index)
            for tensor in _kept_by_functions(segment):
                for part in leaves_of(tensor):
                    if is_functorch_wrapped_tensor(part) or part.layout is not torch.strided:
                        continue  # It is of a transform that is over.
                    if tracing.storage_key(part) not in storages:
                        self._add(storages, part, "a tensor that its forward computed and kept")

    def _add(self, storages: set[int], tensor: torch.Tensor, name: str, **kind: Any) -> None:
        if is_wrapper(tensor):
            for part in leaves_of(tensor):
                self._add(storages, part, f"a part of {name}")
            return
        node = self._tape.node_of(tensor)
        if node is None or tensor.layout is not torch.strided:
            return
        storages.add(tracing.storage_key(tensor))
        self._states.append(
            _State(
                tensor,
                node,
                tracing.functional_inner(tensor),
                _geometry(tensor),
                autograd.version_of(tensor),
                tensor.grad_fn,
                name,
                **kind,
            )
        )

    def changes(self) -> tuple[Write, ...]:
        """What was written to; everything is as before afterwards.

        Raises:
            UnsupportedError: For a change that can't be replayed.
        """
        with self._tape.recording(grad_mode=False):
            changed = [
                state
                for state in self._states
                if self._tape.node_of(state.tensor) is not state.node
                or _geometry(state.tensor) != state.geometry
            ]
            refused = [text for state in changed if (text := self._refusal(state)) is not None]
            found = [] if refused else [self._write(state) for state in changed]
            for state in changed:
                self._undo(state)
        if refused:
            # The tape can't be brought back, so every later backward is refused too.
            self._tape.spoiled = f"A backward inside {self._segment.settings.name} {refused[0]}."
            refuse_spoiled(self._tape)
        return tuple(found)

    def _refusal(self, state: _State) -> str | None:
        if _geometry(state.tensor) != state.geometry:
            return f"changes the shape or the storage of {state.name} in place"
        if state.operand is None and state.tangent is None:
            return f"writes to {state.name}"
        if state.operand is not None and not self._segment.operands[state.operand].by_value:
            return f"writes to {state.name}, which shares memory with another input"
        if any(
            size > 1 and step == 0
            for size, step in zip(state.tensor.shape, state.tensor.stride(), strict=True)
        ):
            return f"writes to {state.name}, more than one of whose elements is in one place"
        if state.grad_fn is None and state.tensor.grad_fn is not None:
            return f"makes {state.name} require grad by writing to it"
        return None

    def _write(self, state: _State) -> Write:
        node = self._tape.node_of(state.tensor)
        if node is None:
            raise RuntimeError("a tensor left the tape")
        return Write(
            state.operand,
            state.tangent,
            state.node,
            self._tape.constant(node),
            autograd.version_of(state.tensor) - state.version,
            state.name,
            state.requires_grad,
        )

    def _undo(self, state: _State) -> None:
        """So that the next backward of this tape starts where this one did."""
        tensor = state.tensor
        if _geometry(tensor) != state.geometry:
            return
        replace_value(tensor, state.inner)
        autograd.set_version(tensor, state.version)
        if tensor.grad_fn is not state.grad_fn:
            tensor.detach_()
            leaf = None if state.operand is None else self._segment.operands[state.operand].leaf
            if leaf is not None:
                self._tape.attach(leaf, tensor)
                autograd.set_version(tensor, state.version)


def _geometry(tensor: torch.Tensor) -> tuple[Any, ...]:
    return *geometry_of(tensor), tracing.has_storage_change(tensor)
