"""Ops recorded while they run, to be run again on other tensors and differentiated there."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
import torch.utils._pytree as pytree
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode, _disable_current_modes

from funcaot._torch.levels.functorch import is_functorch_wrapped_tensor

__all__ = [
    "NotDifferentiableError",
    "OpRecorder",
    "Recording",
    "WritesTakenBack",
    "data_access_refused",
    "write_back",
]

_aten = torch.ops.aten
_DETACHING = {
    _aten.detach.default: _aten.alias.default,
    _aten.detach_.default: lambda tensor: tensor,
}
_READS = frozenset(
    {
        torch.Tensor.numpy,
        torch.Tensor.__array__,
        torch.Tensor.tolist,
        torch.Tensor.data_ptr,
        torch.Tensor.__dlpack__,
    }
)


class NotDifferentiableError(Exception):
    """What was to be recorded can't be differentiated by running its ops again."""


@dataclass(frozen=True)
class _Slot:
    """Stands for a tensor that is given or computed."""

    index: int


@dataclass(frozen=True)
class _Step:
    """One call: its arguments with slots, and the slots of what it returns."""

    call: Callable[..., Any]
    leaves: tuple[Any, ...]
    spec: Any
    results: tuple[int | None, ...]

    def run(self, values: dict[int, Any]) -> None:
        """Run the call on the present values of its slots."""
        leaves = [values[x.index] if isinstance(x, _Slot) else x for x in self.leaves]
        args, kwargs = pytree.tree_unflatten(leaves, self.spec)
        made = pytree.tree_leaves(self.call(*args, **kwargs))
        values.update(
            (slot, value)
            for slot, value in zip(self.results, made, strict=True)
            if slot is not None
        )


@dataclass(frozen=True)
class Recording:
    """Ops from some tensors to others.

    Attributes:
        count: How many tensors are given.
        steps: The calls in order.
        outputs: Slots of the results; what depends on no op and no given tensor is itself.
        writes: Whether some op writes to an argument.
    """

    count: int
    steps: tuple[_Step, ...]
    outputs: tuple[Any, ...]
    writes: bool

    def replay(self, tensors: Sequence[torch.Tensor]) -> tuple[Any, ...]:
        """Run the ops on other tensors, all of them differentiated."""
        values = {
            index: tensor.clone() if self.writes else tensor
            for index, tensor in enumerate(tensors[: self.count])
        }
        with torch.enable_grad():
            for step in self.steps:
                step.run(values)
        return tuple(values[x.index] if isinstance(x, _Slot) else x for x in self.outputs)

    def depends_on(self, given: Sequence[int]) -> bool:
        """Whether an output was computed from one of some given tensors, by whatever ops."""
        reached = set(given)
        for step in self.steps:
            if any(isinstance(x, _Slot) and x.index in reached for x in step.leaves):
                reached.update(slot for slot in step.results if slot is not None)
        return any(isinstance(x, _Slot) and x.index in reached for x in self.outputs)


@dataclass
class _Notes:
    """What was recorded so far; tensors stay alive, so that none takes over another's identity."""

    slots: dict[int, int] = field(default_factory=dict)
    alive: list[torch.Tensor] = field(default_factory=list)
    steps: list[_Step] = field(default_factory=list)
    writes: bool = False

    def slot(self, tensor: torch.Tensor) -> int:
        found = self.slots.get(id(tensor))
        if found is None:
            found = self.slots[id(tensor)] = len(self.alive)
            self.alive.append(tensor)
        return found

    def leaf(self, value: Any) -> Any:
        if isinstance(value, torch.Tensor) and id(value) in self.slots:
            return _Slot(self.slots[id(value)])
        return value


class OpRecorder(TorchDispatchMode):
    """Records every op below autograd, in whatever grad mode it runs.

    A ``detach`` is recorded as an alias: what is replayed is the map from numbers to numbers, of
    which each op is a part.
    """

    def __init__(self, tensors: Sequence[torch.Tensor]) -> None:
        """Begin with the tensors that a replay is given, each another object."""
        super().__init__()
        self._notes = _Notes()
        self._given = [self._notes.slot(tensor) for tensor in tensors]

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        """Run an op and record it."""
        kwargs = kwargs or {}
        self._check(func, args, kwargs)
        result = func(*args, **kwargs)
        self.note(_DETACHING.get(func, func), args, kwargs, result)
        return result

    def note(self, call: Any, args: Any, kwargs: dict[str, Any], result: Any) -> None:
        """Record a call that has run."""
        notes = self._notes
        leaves, spec = pytree.tree_flatten((args, kwargs))
        if any(isinstance(x, torch.Tensor) and is_functorch_wrapped_tensor(x) for x in leaves):
            raise NotDifferentiableError("one that closes over a tensor of a transform")
        step = _Step(
            call,
            tuple(map(notes.leaf, leaves)),
            spec,
            tuple(
                notes.slot(value) if isinstance(value, torch.Tensor) else None
                for value in pytree.tree_leaves(result)
            ),
        )
        notes.steps.append(step)

    def _check(self, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        """Refuse what a replay would leave out or do twice."""
        if torch.Tag.nondeterministic_seeded in func.tags:
            raise NotDifferentiableError("one that draws random numbers")
        if func is _aten._local_scalar_dense.default and _moves(args[0]):
            raise NotDifferentiableError("one that reads numbers off tensors (item)")
        if not func._schema.is_mutable:
            return
        self._notes.writes = True
        for position, argument in enumerate(func._schema.arguments):
            alias = argument.alias_info
            if alias is None or not alias.is_write:
                continue
            value = args[position] if position < len(args) else kwargs.get(argument.name)
            for leaf in pytree.tree_leaves(value):
                if isinstance(leaf, torch.Tensor) and id(leaf) not in self._notes.slots:
                    raise NotDifferentiableError("one that writes to a tensor it closes over")

    def recording(self, outputs: Sequence[Any]) -> Recording:
        """What was recorded, from the given tensors to ``outputs``."""
        return Recording(
            len(self._given),
            tuple(self._notes.steps),
            tuple(map(self._notes.leaf, outputs)),
            self._notes.writes,
        )


def _moves(value: Any) -> bool:
    return isinstance(value, torch.Tensor) and (value.is_floating_point() or value.is_complex())


class _NoDataAccess(TorchFunctionMode):
    def __torch_function__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        if func in _READS and args and _moves(args[0]):
            raise NotDifferentiableError("one that takes numbers out of tensors (NumPy)")
        return func(*args, **(kwargs or {}))


def data_access_refused() -> TorchFunctionMode:
    """Refuse code that goes on with a tensor's numbers where no op is seen."""
    return _NoDataAccess()


class WritesTakenBack(TorchDispatchMode):
    """Keeps what tensors held that ops write to, so that it can be written back.

    Attributes:
        kept: The tensors, and what each held before the first write to its memory.
    """

    def __init__(self, known: Callable[[], Iterable[torch.Tensor]]) -> None:
        """Look at tensors that others have, asked for at each write."""
        super().__init__()
        self.kept: list[tuple[torch.Tensor, torch.Tensor]] = []
        self._known = known
        self._seen: set[int] = set()

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        """Run an op."""
        if func._schema.is_mutable:
            leaves = pytree.tree_leaves((args, kwargs))
            for value in leaves:
                if isinstance(value, torch.Tensor):
                    self._keep(value)
        return func(*args, **(kwargs or {}))

    def _keep(self, written: torch.Tensor) -> None:
        memory = written.untyped_storage().data_ptr()
        if memory in self._seen:
            return
        for tensor in self._known():
            if tensor.untyped_storage().data_ptr() == memory:
                self._seen.add(memory)
                self.kept.append((tensor, tensor.detach().clone()))


def write_back(kept: list[tuple[torch.Tensor, torch.Tensor]]) -> None:
    """Undo writes, whatever modes are in force.

    Args:
        kept: The tensors, and what each held.
    """
    with _disable_current_modes(), torch._C.DisableTorchFunction(), torch.no_grad():
        for tensor, before in kept:
            tensor.detach().copy_(before)
