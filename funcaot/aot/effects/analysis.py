"""Finding a captured function's effects: mutations of its inputs, aliases among its outputs."""

from __future__ import annotations

import math
import operator
from collections.abc import Iterator, Sequence
from dataclasses import replace

import torch
from torch import fx

from funcaot._torch.autograd import autograd
from funcaot._torch.tensors.ops import TRAINING_NORMS
from funcaot._torch.tensors.sizes.shapes import expression_of
from funcaot._torch.tracing import tracing
from funcaot.aot.capture.capture import (
    Capture,
    Input,
    geometry_of,
)
from funcaot.aot.capture.explained import is_stale, limit_of_writes, stale_view
from funcaot.aot.capture.inner_tensors import refuse_derivatives
from funcaot.aot.capture.shared.shared_memory import Region
from funcaot.aot.effects.actions.action import Action
from funcaot.aot.effects.actions.attach import Attach
from funcaot.aot.effects.actions.overwrite import Overwrite
from funcaot.aot.effects.actions.reshape import Reshape
from funcaot.aot.effects.actions.set_storage import SetStorage
from funcaot.aot.effects.actions.take_gradient import TakeGradient
from funcaot.aot.effects.aliases import Aliases, Results, describe
from funcaot.aot.effects.attached import on_outputs
from funcaot.aot.effects.effects import Effects, Mutation, Watched
from funcaot.aot.effects.required import attribute_changes
from funcaot.aot.effects.wrappers import written_inside
from funcaot.aot.graph import graphs
from funcaot.aot.graph.tensor_spec import is_dense, overlap
from funcaot.aot.tape.frontier import frontier
from funcaot.aot.tape.wrappers import leaves_of
from funcaot.errors import UnsupportedError


def analyse(capture: Capture, name: str) -> Effects:
    """Find a captured function's mutations and aliases.

    Raises:
        UnsupportedError: For an effect that isn't supported, naming the input.
    """
    try:
        return _analyse(capture, name)
    except (RuntimeError, ValueError) as error:
        limit = limit_of_writes(error, name)
        if limit is not None:
            raise limit from error
        if is_stale(error):
            raise stale_view(name) from error
        forbidden = "its base or another view of its base has been modified" in str(error)
        if isinstance(error, UnsupportedError) or not (capture.events.wholes or forbidden):
            raise
        if forbidden:
            raise UnsupportedError(
                f"{name} returns a view whose base was written to so that autograd forbids to use "
                f"the view: {error}",
                remedy="write to the base first, or make the view and the write in one grad mode.",
            ) from error
        # Autograd makes views anew on the base's present shape, which may not have them.
        raise UnsupportedError(
            f"{name} changes the shape of a tensor in place and uses an earlier view of it.",
            remedy="make the view afterwards, or change the shape of a new tensor (x.t()).",
        ) from error


def _analyse(capture: Capture, name: str) -> Effects:
    with capture.tape.recording(grad_mode=False):
        _refuse_unsafe(capture, name)
        _look_at_joined(capture)
        results = Results(capture, name)
        aliases = Aliases(capture, results, name)
        outputs = tuple(aliases.output(value) for value in capture.outputs)
        flats = tuple(
            (index, results.silent(slot.tensor))
            for index, slot in enumerate(capture.slots)
            if slot.kind == "flat" and capture.tape.node_of(slot.tensor) is not slot.node
        )
        _refuse_written_places(capture, flats, name)
        mutations = _with_attached(capture, _Mutations(capture, results, aliases, name).all())
    refuse_derivatives(capture.tape, capture.slots, results.tensors, name)
    regions = tuple(map(str, capture.regions)) if flats or mutations else ()
    attached = on_outputs(capture, outputs, name)
    return Effects(tuple(results.tensors), mutations, outputs, flats, regions, attached)


def _with_attached(capture: Capture, mutations: tuple[Mutation, ...]) -> tuple[Mutation, ...]:
    """Mutations with what the function left on the tensor objects, which comes at last."""
    found = {mutation.index: mutation for mutation in mutations}
    for index, left in capture.attached.inputs:
        made = found.get(index, Mutation(index))
        found[index] = replace(made, actions=(*made.actions, Attach(left)))
    return tuple(found[index] for index in sorted(found))


def _look_at_joined(capture: Capture) -> None:
    """Make views of written memory again as the function would: forward mode asks how."""
    with torch.enable_grad():
        for slot in capture.inputs:
            if slot.kind == "joined":
                capture.tape.node_of(slot.tensor)


def _shows_all_of(view: fx.Node, whole: fx.Node) -> bool:
    """Whether a view is what it was made of: under transforms, a change of shape may be none."""
    values = graphs.value_of(view), graphs.value_of(whole)
    if graphs.view_root(view) is not whole or values[0].layout is not torch.strided:
        return False
    places = [(value.shape, value.stride(), value.storage_offset()) for value in values]
    return places[0] == places[1]


def _refuse_unsafe(capture: Capture, name: str) -> None:
    """Refuse what shows that the results of ``unsafe_split`` share memory with its source.

    In a graph they don't, which is right as long as nobody writes to either.
    """
    for source, version, pieces in capture.events.unsafe:
        storages = {tracing.storage_key(piece) for piece in pieces}
        written = autograd.version_of(source) != version or any(
            autograd.version_of(piece) or tracing.has_data_mutation(piece) for piece in pieces
        )
        returned = any(
            isinstance(value, torch.Tensor)
            and value.layout is torch.strided
            and any(tracing.storage_key(part) in storages for part in leaves_of(value))
            for value in capture.outputs
        )
        if written or returned:
            what = "writes to" if written else "returns"
            raise UnsupportedError(
                f"{name} {what} a result of unsafe_split or unsafe_chunk, or their source.",
                remedy="use split or chunk.",
            )


def _refuse_written_places(capture: Capture, flats: tuple[tuple[int, int], ...], name: str) -> None:
    """Refuse to write to memory that ``as_strided`` shows beyond the tensor that it was called on.

    Views of views are made again from each other, where autograd goes back to their base: what is
    outside of the tensor would get no gradient, or not be written to.
    """
    for node in capture.tape.graph.nodes:
        if node.target is torch.ops.aten.as_strided_scatter.default:
            whole = graphs.value_of(node.args[0])
            if not whole.is_contiguous() and not is_dense(tuple(whole.shape), whole.stride()):
                raise UnsupportedError(
                    f"{name} writes to a view by as_strided of a tensor that has gaps or, with "
                    "open sizes, another order than the usual one in memory.",
                    remedy="make the view with slices, view, transpose and the like; under forward "
                    "mode torch makes it for each write to a view: write to one of a contiguous "
                    "tensor.",
                )
            size, stride = node.args[2], node.args[3]
            if all(isinstance(number, int) for number in (*size, *stride)) and overlap(
                size, stride
            ):
                raise UnsupportedError(
                    f"{name} writes to a view by as_strided whose elements share memory.",
                    remedy="write to a clone of the view, or to one element of memory once.",
                )
    written = {tracing.storage_key(capture.slots[slot].tensor) for slot, _ in flats}
    for tensor in capture.events.placed:
        reshaped = id(tensor) in capture.events.wholes
        if (reshaped or tensor.requires_grad) and tracing.storage_key(tensor) in written:
            raise UnsupportedError(
                f"{name} writes to memory that it also sees by as_strided with an offset or beyond "
                "the tensor that it calls it on.",
                remedy="make the view with slices, view, transpose and the like.",
            )


def watched(capture: Capture, effects: Effects) -> tuple[Watched, ...]:
    """Tensors of the caller that hold what autograd saved, where the graph keeps its own copy.

    Eager would raise if the owner wrote to them: inputs whose new value was saved, and results that
    the function wrote to through a view, whose value was saved.
    """
    with capture.tape.recording(grad_mode=False):
        if not effects.mutations and not any(out.requires_grad for out in effects.results):
            return ()
        demands = [d.node for d in frontier(capture.tape, effects.results) if d.checked]
        nodes = [capture.tape.node_of(tensor) for tensor in effects.results]
    saved = {graphs.view_root(node) for node in demands}
    roots = [None if node is None else graphs.view_root(node) for node in nodes]
    shared = [roots[position] for _, position in effects.flats]
    found: list[Watched] = []
    for mutation in effects.mutations:
        for root in [roots[position] for position in mutation.results]:
            if root is not None and root in saved and not _is_running_statistic(root):
                found.append(Watched(mutation.index, None, root))
        if mutation.reshapes and not mutation.writes:
            # Only its shape changes, but the graph keeps a copy: its version does too.
            root = graphs.view_root(capture.slots[mutation.index].node)
            if root in saved:
                found.append(Watched(mutation.index, None, root))
    for index, slot in enumerate(capture.slots):
        if slot.kind == "family":
            # The graph saves the flat memory, which has a version of its own.
            flats = dict.fromkeys([graphs.view_root(slot.node), *shared])
            found += [Watched(index, None, r) for r in flats if r is not None and r in saved]
    return (*found, *_watched_results(capture, effects, demands, nodes))


def _is_running_statistic(node: fx.Node) -> bool:
    """Whether it is what a batch norm in training made of its running mean or variance.

    Torch saves these and never reads them, so nothing is wrong when the caller changes them.
    """
    if node.target is not operator.getitem:
        return False
    norm, position = node.args
    return isinstance(norm, fx.Node) and norm.target in TRAINING_NORMS and position in (3, 4)


def _watched_results(
    capture: Capture,
    effects: Effects,
    demands: Sequence[fx.Node],
    nodes: Sequence[fx.Node | None],
) -> Iterator[Watched]:
    """Results in whose memory something lies that was saved, other than the results themselves."""
    inputs = {graphs.view_root(slot.node) for slot in capture.slots}
    taken = {position for mutation in effects.mutations for position in mutation.results}
    taken |= {position for _, position in effects.flats}
    own = {graphs.without_aliases(node) for node in nodes if node is not None}
    saved = {graphs.view_root(node) for node in demands}
    # A result that is saved as it is has a version that autograd itself checks.
    copied = {
        graphs.view_root(node)
        for node in map(graphs.without_aliases, demands)
        if node not in own or graphs.view_source(node) is not None
    }
    for position, node in enumerate(nodes):
        if node is None or position in taken:
            continue
        root = graphs.view_root(node)
        silent = not effects.results[position].requires_grad
        if root not in inputs and (root in copied or (silent and root in saved)):
            yield Watched(None, position, root)


class _Mutations:
    """What happens to each input."""

    def __init__(self, capture: Capture, results: Results, aliases: Aliases, name: str) -> None:
        self.capture = capture
        self.results = results
        self.aliases = aliases
        self.name = name

    def all(self) -> tuple[Mutation, ...]:
        found = []
        for index, slot in enumerate(self.capture.slots):
            if slot.kind == "inner":
                continue
            if slot.spec.structure is not None:
                found.append(self._inside(index))
                continue
            if slot.kind == "flat" or slot.spec.layout is not torch.strided:
                self._refuse_sparse(index, slot)
                continue
            found.append(self._mutation(index, slot))
        return tuple(mutation for mutation in found if mutation is not None)

    def _inside(self, index: int) -> Mutation | None:
        results, changes = self.results, attribute_changes(self.capture.slots[index])
        return written_inside(self.capture, index, self.name, results.silent, results.of, changes)

    def _refuse_sparse(self, index: int, slot: Input) -> None:
        if slot.kind != "flat" and autograd.version_of(slot.tensor) != slot.version:
            raise UnsupportedError(
                f"{self.name} changes the sparse tensor {describe(self.capture.slots, index)} in "
                "place.",
                remedy="return a new tensor instead.",
            )

    def _mutation(self, index: int, slot: Input) -> Mutation | None:
        if slot.kind == "joined":
            return self._joined(index, slot)
        tensor, spec = slot.tensor, slot.spec
        replaced = tracing.has_storage_change(tensor)
        versions = self._versions(slot) if self._counts(index) else 0
        layout = self._layout(index, slot) if not replaced else None
        changed = slot.kind == "plain" and self._has_new_data(slot)
        if tensor.is_inference() and (changed or layout is not None):
            versions = 1
        recorded = tensor.grad_fn is not slot.grad_fn and tensor.grad_fn is not None
        before, after = attribute_changes(slot)
        if spec.requires_grad and not spec.is_leaf and tensor.requires_grad and tensor.is_leaf:
            raise self._unsupported(index, "detaches, and makes a new leaf of,")
        if before is not None and layout is not None and layout.resized:
            raise self._unsupported(index, "resizes, and starts to require grad of,")
        value = self._value(slot, layout, changed=changed, recorded=recorded, replaced=replaced)
        found: list[Action | None] = [before]
        if value is not None:
            found.append(self._overwrite(slot, value, recorded=recorded, versions=versions))
        found.append(self._new_storage(index, slot) if replaced else None)
        found.append(layout)
        graded = self._graded(slot, layout, changed=changed, recorded=recorded)
        found.append(None if graded is None else TakeGradient(graded))
        turned = id(tensor) in self.capture.events.turned
        if (recorded or turned) and not any(found) and after is None:
            # The shape is what it was. Autograd records that too, or refuses it.
            found.append(_same_layout(slot, of_view=not recorded))
        actions = tuple(action for action in (*found, after) if action is not None)
        if slot.kind == "member":
            if tensor.requires_grad and tensor.is_leaf and not spec.requires_grad:
                raise self._unsupported(index, "makes a leaf of")
            # Its family counts for it; only its shape is its own.
            if layout is None and not replaced:
                return None
            if recorded and spec.requires_grad:
                raise self._unsupported(index, "changes the shape of")
        return Mutation(index, actions, versions or None) if actions or versions else None

    def _overwrite(self, slot: Input, value: int, *, recorded: bool, versions: int) -> Overwrite:
        if not versions:
            return Overwrite(value, "data")
        detached = not recorded and self._is_detached(slot.tensor)
        return Overwrite(value, "detached" if detached else "itself")

    def _joined(self, index: int, slot: Input) -> Mutation | None:
        """The new data of an input that is copied into memory that it shares."""
        view, region, flat = slot.tensor, self.capture.joined(index), slot.tensor._base
        if region is None or flat is None or geometry_of(view) != slot.geometry:
            raise self._unsupported(index, "changes the shape of")
        if region.unrelated and flat.requires_grad:
            raise self._unsupported(index, "writes what has a derivative to memory shared by")
        written = any(place.input == index and place.written for place in region.places)
        if not written or self.capture.tape.node_of(view) is slot.entered:
            return None
        recorded = flat.grad_fn is not slot.grad_fn and flat.grad_fn is not None
        with torch.set_grad_enabled(recorded):
            # Results that overlap would be views of one another.
            own = view.clone()
        versions = self._versions(slot)
        if recorded:
            return Mutation(index, (TakeGradient(self.results.of(own)),), versions or None)
        value = self._silent(own, detached=self._is_detached(view))
        copy = self._overwrite(slot, value, recorded=False, versions=versions)
        return Mutation(index, (copy,), versions or None)

    def _versions(self, slot: Input) -> int:
        """How many in-place changes of an input eager counts."""
        uncounted = self.capture.tape.detached_writes.counted(slot.tensor)
        return autograd.version_of(slot.tensor) - slot.version - uncounted

    def _counts(self, index: int) -> bool:
        """Whether an input's changes are counted under its own name."""
        position = index - len(self.capture.inputs)
        for region in self.capture.regions:
            if not isinstance(region, Region):
                continue
            if 0 < position <= len(region.families):
                return region.families[position - 1].counter == position - 1
            position -= 1 + len(region.families)
        return self.capture.slots[index].kind != "member"

    def _unsupported(self, index: int, what: str) -> UnsupportedError:
        return UnsupportedError(
            f"{self.name} {what} {describe(self.capture.slots, index)} in place, in a way that "
            "can't be replayed.",
            remedy="return the changed tensor instead (x.t() for x.t_(), and so on).",
        )

    def _has_new_data(self, slot: Input) -> bool:
        whole = self.capture.events.wholes.get(id(slot.tensor), slot.tensor)
        if whole is slot.tensor:
            node = self.capture.tape.node_of(whole)
            return node is not slot.node and not (
                node is not None and slot.node is not None and _shows_all_of(node, slot.node)
            )
        return tracing.has_data_mutation(whole)

    def _value(
        self,
        slot: Input,
        layout: Reshape | None,
        *,
        changed: bool,
        recorded: bool,
        replaced: bool,
    ) -> int | None:
        if not changed or (recorded and layout is None and not replaced):
            return None
        whole = self.capture.events.wholes.get(id(slot.tensor), slot.tensor)
        if replaced and whole is slot.tensor:
            return None
        if tuple(map(expression_of, whole.shape)) != slot.spec.shape:
            return None
        return self._silent(whole, detached=not recorded and self._is_detached(slot.tensor))

    def _is_detached(self, tensor: torch.Tensor) -> bool:
        """Whether what autograd didn't record of an input's new data didn't move its tangent.

        Forward mode refuses what it can't tell apart, as writes of both kinds.
        """
        capture = self.capture
        return capture.forward_mode and capture.tape.detached_writes.through_others(tensor)

    def _silent(self, tensor: torch.Tensor, *, detached: bool) -> int:
        if not detached:
            return self.results.silent(tensor)
        # A node of its own, that has no tangent whatever is written.
        with torch.enable_grad():
            return self.results.silent(tensor.detach())

    def _graded(
        self, slot: Input, layout: Reshape | None, *, changed: bool, recorded: bool
    ) -> int | None:
        tensor = slot.tensor
        if slot.kind == "family":
            return self.results.of(self._apart(tensor)) if recorded else None
        if not changed:
            return None
        if recorded:
            return self.results.of(tensor)
        if layout is not None and layout.resized:
            return self.results.silent(tensor)
        return None

    def _apart(self, tensor: torch.Tensor) -> torch.Tensor:
        """What a base becomes for autograd, as a copy if nothing was written to its memory.

        Then it would be returned from the graph as a view of the region.
        """
        node = self.results.node(tensor)
        if graphs.view_root(node).op != "placeholder":
            return tensor
        with torch.enable_grad():
            return tensor.clone()

    def _layout(self, index: int, slot: Input) -> Reshape | None:
        tensor, events = slot.tensor, self.capture.events
        shape, stride, offset = geometry_of(tensor)
        if slot.kind == "family" or (shape, stride, offset) == slot.geometry:
            return None
        resized = id(tensor) in events.resized
        if id(tensor) not in events.wholes and not resized:
            raise self._unsupported(index, "changes the shape of")
        if slot.kind != "plain" and slot.geometry[1] != slot.spec.stride:
            # Strides of dimensions of size one, which views that compose don't give.
            raise self._unsupported(index, "changes the shape of")
        recorded = tensor.grad_fn is not slot.grad_fn and tensor.grad_fn is not None
        if recorded and math.prod(shape) < math.prod(slot.geometry[0]) and self._has_new_data(slot):
            # Gradients of what isn't seen any more would be lost.
            raise self._unsupported(index, "writes to and changes the shape of")
        calls = events.reshapes.get(id(tensor)) or ()
        return Reshape(shape, stride, offset - slot.geometry[2], resized, recorded, calls=calls)

    def _new_storage(self, index: int, slot: Input) -> SetStorage:
        assigned = id(slot.tensor) in self.capture.events.reassigned
        if slot.spec.requires_grad and not assigned:
            raise UnsupportedError(
                f"{self.name} replaces the storage of {describe(self.capture.slots, index)}, which "
                "requires grad; what autograd then saves of it is another tensor's.",
                remedy="write x.copy_(value) under torch.no_grad(), or call set_ outside.",
            )
        if slot.kind != "plain":
            raise self._unsupported(index, "replaces the storage of")
        origin = self.aliases.storage_of(slot.tensor)
        if origin is None:
            raise self._unsupported(index, "replaces the storage of")
        return SetStorage(origin, assigned)


def _same_layout(slot: Input, *, of_view: bool) -> Reshape:
    """The metadata that an input has, given to it once more."""
    shape, stride, _ = slot.geometry
    return Reshape(shape, stride, 0, resized=False, with_grad=True, of_view=of_view)
