"""What a function does to wrappers among its inputs and outputs, as far as a call can replay it.

A wrapper that comes out is made around results of the graph, and around inner tensors of inputs
that are passed on as they are; views are made again. Data that is written inside of a wrapper is
copied there. What else shares memory, or changes a wrapper, is refused.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any, TypeAlias

import torch
from torch import fx

from funcaot._torch.autograd import autograd
from funcaot._torch.tracing import tracing
from funcaot.aot.capture.capture import Capture, Input, geometry_of
from funcaot.aot.effects.actions.action import Action
from funcaot.aot.effects.actions.keep_inside import KeepInside
from funcaot.aot.effects.actions.overwrite_inside import CountInside, OverwriteInside
from funcaot.aot.effects.actions.take_history import TakeHistory
from funcaot.aot.effects.actions.turn import Turn
from funcaot.aot.effects.around import holds_recorded
from funcaot.aot.effects.effects import Mutation
from funcaot.aot.effects.jagged import is_view_of_values
from funcaot.aot.effects.made_again import base_of, detached_from, storages_of
from funcaot.aot.effects.origin import Origin
from funcaot.aot.graph import graphs
from funcaot.aot.graph.tensor_spec import is_dense, spec_of
from funcaot.aot.subclasses.nodes import is_part, is_wrapped, way_to
from funcaot.aot.subclasses.refusals import forward_refusal
from funcaot.aot.subclasses.structure import (
    Structure,
    metadata_without_grad,
    paths_inside,
    paths_of,
)
from funcaot.aot.tape.memory.views import shown_from
from funcaot.aot.tape.wrappers import is_wrapper, leaves_of
from funcaot.errors import UnsupportedError

__all__ = ["Memory", "written_inside"]

Result: TypeAlias = Callable[[torch.Tensor], int]
Changes: TypeAlias = tuple[Action | None, Action | None]


def written_inside(
    capture: Capture, index: int, name: str, silent: Result, graded: Result, changes: Changes
) -> Mutation | None:
    """What a function writes to a wrapper that it is given.

    Args:
        capture: What the function did.
        index: The wrapper's position among the inputs.
        name: The user's function, for messages.
        silent: Makes a tensor's value a result of the graph.
        graded: Makes a tensor one, as autograd knows it.
        changes: Changes of ``requires_grad`` before the graph runs, and at last.

    Raises:
        UnsupportedError: If more changes than data inside, shape and history.
    """
    tape, slot = capture.tape, capture.slots[index]
    tensor = slot.tensor
    node = tape.node_of(tensor)
    versions = autograd.version_of(tensor) - slot.version
    recorded = tensor.grad_fn is not slot.grad_fn and tensor.grad_fn is not None
    before, after = changes
    unchanged = node is not None and not is_wrapped(node) and not versions
    if unchanged and before is None and after is None:
        return None
    calls = capture.events.reshapes.get(id(tensor), ())
    if calls is None or _differs(slot, turned=bool(calls)) or _writes_to_source(slot):
        raise _refusal(slot, name)
    written = list(_parts_written(capture, slot, name, turned=bool(calls)))
    actions: list[Action] = [] if before is None else [before]
    actions += [Turn(calls, recorded and not written)] if calls else []
    actions += [OverwriteInside(path, silent(p), autograd.version_of(p)) for path, p in written]
    actions += [KeepInside(name, silent(part)) for name, part in _kept_since(slot).items()]
    actions += _counted(capture, slot)
    if recorded and (written or not calls):
        actions.append(TakeHistory(graded(tensor)))
    actions += [] if after is None else [after]
    return Mutation(index, tuple(actions), versions or None) if actions or versions else None


def _kept_since(slot: Input) -> dict[str, torch.Tensor]:
    """What a jagged tensor has computed of its lengths, which it knows from now on."""
    known, now = slot.spec.structure, spec_of(slot.tensor).structure
    if slot.tensor.layout is not torch.jagged or known is None or now is None:
        return {}
    pairs = zip(now.names, now.parts(slot.tensor), strict=True)
    return {name: part for name, part in pairs if name not in known.names}


def _counted(capture: Capture, slot: Input) -> list[CountInside]:
    """The wrappers inside of a wrapper that were written to, each where it is first."""
    found = []
    for path, part in paths_inside(slot.tensor):
        entered = capture.tape.wrappers.entered(part) if is_wrapper(part) else None
        if entered is not None and way_to(entered) == (slot.node, path):
            found.append(CountInside(path, autograd.version_of(part)))
    return [count for count in found if count.versions]


def _writes_to_source(slot: Input) -> bool:
    """Whether autograd recorded a write through the values of a jagged view of another tensor.

    What it recorded leads to that tensor, which a call doesn't have.
    """
    structure = slot.spec.structure
    if slot.tensor.layout is not torch.jagged or structure is None:
        return False
    recorded = slot.tensor.grad_fn
    inside = any(part.requires_grad for part in structure.inner)
    return inside and recorded is not None and recorded.name().endswith("CopySlices")


def _parts_written(
    capture: Capture, slot: Input, name: str, *, turned: bool
) -> Iterator[tuple[tuple[str, ...], torch.Tensor]]:
    """The tensors inside that hold new data, but for those that another place counts as its own."""
    tape = capture.tape
    owners = {other.node for other in capture.inputs if other.spec.structure is not None}
    added = _kept_since(slot)
    given = {id(other.tensor): other for other in capture.inputs}
    for path, part in paths_of(slot.tensor):
        if path[0] in added:
            continue
        alone = given.get(id(part))
        if alone is not None:
            if turned or tracing.has_storage_change(part) or geometry_of(part) != alone.geometry:
                raise _refusal(slot, name)
            continue
        entered = tape.wrappers.entered(part) or _entered_there(capture, slot, path, part)
        if entered is None or tracing.has_storage_change(part):
            raise _refusal(slot, name)
        owner = way_to(entered)
        if owner != (slot.node, path):
            if turned or owner[0] not in owners:
                raise _refusal(slot, name)
            continue
        now = tape.node_of(part)
        if now is not entered and not (turned and _is_view_of(now, entered)):
            if not _keeps_order(part):
                raise _refusal(slot, name)
            yield path, part


def _entered_there(
    capture: Capture, slot: Input, path: tuple[str, ...], part: torch.Tensor
) -> fx.Node | None:
    """The node of what was in a place before, if the class put an alias of that there."""
    for before, node in capture.tape.wrappers.all_entered():
        if way_to(node) == (slot.node, path) and not is_wrapper(before):
            same = geometry_of(before) == geometry_of(part)
            shared = tracing.storage_key(before) == tracing.storage_key(part)
            return node if same and shared else None
    return None


def _keeps_order(part: torch.Tensor) -> bool:
    """Whether ops on a tensor give the order of strides that it has, as a functional write does."""
    shape, stride = tuple(part.shape), part.stride()
    kept = [step for size, step in zip(shape, stride, strict=True) if size != 1]
    ordered = 0 not in kept and kept == sorted(set(kept), reverse=True)
    return ordered or is_dense(shape, stride)


def _is_view_of(node: fx.Node | None, entered: fx.Node) -> bool:
    return node is not None and graphs.view_root(node) is graphs.view_root(entered)


def _differs(slot: Input, *, turned: bool) -> bool:
    """Whether more has changed than data inside, and the shape where that is known."""
    tensor, spec = slot.tensor, spec_of(slot.tensor)
    known, now = slot.spec.structure, spec.structure
    if tensor.layout is torch.jagged:
        # Most are views, which eager doesn't detach in place.
        detached = slot.spec.requires_grad and not tensor.requires_grad
        moved = detached or (slot.spec.shape, slot.spec.stride) != (spec.shape, spec.stride)
    else:
        moved = geometry_of(tensor) != slot.geometry
    return (
        tensor.layout not in (torch.strided, torch.jagged)
        or (moved and not turned)
        or known is None
        or now is None
        or known.kind is not now.kind
        or not _has_same_metadata(slot, known, now)
    )


def _has_same_metadata(slot: Input, known: Structure, now: Structure) -> bool:
    """Whether metadata are as they were, but for whether the wrapper requires grad."""
    if known.metadata == now.metadata or slot.spec.requires_grad == slot.tensor.requires_grad:
        return known.metadata == now.metadata
    return metadata_without_grad(known, slot.tensor) == metadata_without_grad(now, slot.tensor)


def _refusal(slot: Input, name: str) -> UnsupportedError:
    return UnsupportedError(
        f"{name} writes to {slot}, a tensor subclass {type(slot.tensor).__name__}, in place, in a "
        "way that can't be replayed.",
        remedy="return the new value, and write it to the tensor outside: x.copy_(f(x)).",
    )


def _parts_inside(capture: Capture, index: int) -> Iterator[tuple[Origin, torch.Tensor]]:
    """The tensors inside of an input that is a wrapper, and how a call finds them."""
    slot, wrappers = capture.inputs[index], capture.tape.wrappers
    for path, part in paths_inside(slot.tensor) if slot.spec.structure is not None else ():
        if wrappers.entered(part) and (is_wrapper(part) or not tracing.has_storage_change(part)):
            yield Origin(source=index, part=path), part


def _plain_storages(outputs: Sequence[Any]) -> set[int]:
    """The memory of plain results."""
    return {
        tracing.storage_key(value)
        for value in outputs
        if isinstance(value, torch.Tensor)
        and value.layout is torch.strided
        and not is_wrapper(value)
    }


def _parts_shown(
    value: torch.Tensor, outputs: Sequence[Any], result: Callable[[torch.Tensor], int]
) -> Iterator[tuple[Origin, torch.Tensor]]:
    """The tensors inside of a result whose memory plain results show, and how a call finds them.

    What autograd has recorded for one of them is a result's and not the wrapper's.
    """
    shown = _plain_storages(outputs)
    for path, part in paths_inside(value):
        if part.requires_grad or part.layout not in (torch.strided, torch.jagged):
            continue
        returned = is_wrapper(part) and any(part is output for output in outputs)
        if returned or (not is_wrapper(part) and tracing.storage_key(part) in shown):
            yield Origin(result=result(value), part=path), part


class Memory:
    """The memory inside of wrappers that come in and go out.

    Attributes:
        parts: The tensors inside of inputs, and of results that plain ones share memory with, and
            how a call finds them.
    """

    def __init__(
        self,
        capture: Capture,
        name: str,
        result: Callable[[torch.Tensor], int],
        plain: dict[int, list[int]],
    ) -> None:
        """Look at all of it.

        Args:
            capture: What the function did.
            name: The user's function, for messages.
            result: Makes a tensor a result of the graph.
            plain: Inputs that are plain tensors, by storage.

        Raises:
            UnsupportedError: If there are wrappers at a level of a transform.
        """
        inputs, outputs, tape = capture.inputs, capture.outputs, capture.tape
        self.name = name
        self.parts: list[tuple[Origin, torch.Tensor]] = []
        self._tape, self._at_level, self._plain = tape, tape.is_at_level, plain
        if self._at_level and tape.wrappers.used:
            raise forward_refusal(name)
        self._owners: dict[int, tuple[torch.Tensor, str]] = {}
        self._given: list[torch.Tensor] = []
        for index, slot in enumerate(inputs):
            self.parts += _parts_inside(capture, index)
            if slot.spec.structure is None:
                # What was written to it is a result, which isn't the input.
                self._given += [slot.tensor] if tape.node_of(slot.tensor) is slot.node else []
            else:
                self._given += [p for p in leaves_of(slot.tensor) if is_part(tape.node_of(p))]
                added = [*map(id, _kept_since(slot).values())]
                for key, part in storages_of(slot.tensor):
                    if id(part) not in added:
                        self._owners.setdefault(key, (part, f"a part of {slot}"))
        self._inputs = frozenset(self._owners)
        self._views = any(is_wrapper(value) for value in outputs)
        inner = [part for each in filter(is_wrapper, outputs) for _, part in paths_inside(each)]
        inner += [part for _, part in self.parts]
        self._known = [*(slot.tensor for slot in inputs), *(part for _, part in self.parts)]
        given = [part for _, part in self.parts]
        for value in outputs:
            if not is_wrapper(value) or is_view_of_values(value):
                continue
            viewed = base_of(capture, value, given) is not None
            again = viewed or detached_from(capture, value) is not None
            inside = any(value is part for part in inner)
            inside = inside or self.is_made_around(value)
            if not again and not inside and not any(value is slot.tensor for slot in inputs):
                self.parts += _parts_shown(value, outputs, result)
                for key, part in storages_of(value):
                    self._owners.setdefault(key, (part, "another result"))

    @property
    def exist(self) -> bool:
        """Whether there are wrappers."""
        return bool(self._owners) or self._views

    def part_with(self, value: torch.Tensor) -> tuple[Origin, torch.Tensor] | None:
        """The tensor inside of a wrapper that has the memory of another one, and how to find it."""
        key, parts = tracing.storage_key(value), self.parts
        plain = [
            each for each in parts if each[1].layout is torch.strided and not is_wrapper(each[1])
        ]
        found = [each for each in plain if tracing.storage_key(each[1]) == key]
        related = [each for each in found if autograd.shares_version(each[1], value)]
        return next(iter(related or found), None)

    def shows_part(self, value: torch.Tensor) -> bool:
        """Whether a tensor shows what is inside of an input, as it came.

        The node of a graph can return such a view, as a Function does of what it takes out of a
        wrapper (``to_local``).
        """
        node = self._tape.node_of(value)
        shown = None if node is None else shown_from(node)
        return shown is not None and is_part(shown[0]) and value.is_floating_point()

    def holds(self, key: int) -> bool:
        """Whether this memory is inside of an input."""
        return key in self._inputs

    def check(self, value: torch.Tensor) -> None:
        """Refuse a result that shares memory in a way that a call can't make.

        Args:
            value: The result, a wrapper or not.

        Raises:
            UnsupportedError: If it does.
        """
        if is_wrapper(value) and self._at_level:
            raise forward_refusal(self.name)
        if is_wrapper(value) and (value.is_conj() or value.is_neg()):
            raise UnsupportedError(
                f"{self.name} returns a {type(value).__name__} with a conjugate or negative bit.",
                remedy="return x.resolve_conj() or x.resolve_neg().",
            )
        if not self._owners or value.layout not in (torch.strided, torch.jagged):
            return
        if not is_wrapper(value) and self.part_with(value) is not None:
            return
        for key, part in storages_of(value):
            if is_wrapper(value) and self._goes_through(part, alone=value._base is None):
                continue
            whole, owner = self._owners.get(key, (part, ""))
            if key in self._inputs or part is not whole:
                self._refuse(value, owner)
            if is_wrapper(value) and key in self._plain:
                self._refuse(value, "an input")

    def is_made_around(self, value: Any) -> bool:
        """Whether the epilogue makes a wrapper itself, of what it makes besides."""
        if not is_wrapper(value) or value.layout is not torch.strided or value._base is not None:
            return False
        if any(value is each for each in self._known):
            return False
        if holds_recorded(value, self._known):
            return True
        return not value.requires_grad and any(
            key in self._plain and not self._goes_through(part, alone=True)
            for key, part in storages_of(value)
        )

    def refuse_shared(self, value: torch.Tensor) -> None:
        """Refuse a wrapper that is made outside of the graph, of what one that it gives holds.

        Raises:
            UnsupportedError: If it shares memory with that.
        """
        for key, part in storages_of(value):
            found = any(part is each for _, each in self.parts)
            known = key in self._inputs or key in self._plain
            if key in self._owners and not known and not found:
                self._refuse(value, self._owners[key][1])

    def _goes_through(self, part: torch.Tensor, *, alone: bool) -> bool:
        """Whether what is inside of a result is an input, or a view of one.

        Where the result is itself a view for autograd (not alone), of integers only.
        """
        if any(part is given for given in self._given):
            return True
        node = self._tape.node_of(part)
        shown = None if node is None else shown_from(node)
        if shown is None or part.grad_fn is not None or (part.is_floating_point() and not alone):
            return False
        return any(self._tape.node_of(each) is shown[0] for each in self._given)

    def _refuse(self, value: torch.Tensor, owner: str) -> None:
        kind = f"a {type(value).__name__}" if is_wrapper(value) else "a tensor"
        raise UnsupportedError(
            f"{self.name} returns {kind} that shares memory with {owner}, through a tensor "
            "subclass.",
            remedy="return a clone, or make the view outside of the compiled function.",
        )
