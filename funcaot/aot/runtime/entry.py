"""One signature's program at run time: prologue, segment, epilogue."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any

import torch

from funcaot._torch.autograd import autograd, nodes
from funcaot._torch.levels import functorch
from funcaot._torch.tensors.pytree import tree_unflatten
from funcaot.aot.capture.capture import Capture, Input, Sharing, capture
from funcaot.aot.capture.grad_effects import GradientEffects, GradientTracker
from funcaot.aot.capture.nested_data import refuse_nested_data
from funcaot.aot.capture.shared_inputs import placed_inputs, refuse_room, sharing_of
from funcaot.aot.capture.shared_memory import find_regions, real_tensors
from funcaot.aot.effects import epilogue
from funcaot.aot.effects.analysis import analyse, watched
from funcaot.aot.effects.effects import Effects, Mutation, Watched
from funcaot.aot.effects.retained import Retained, check_gradients, retain, retained
from funcaot.aot.graph import graphs
from funcaot.aot.graph.edges import HiddenLeaf, edge
from funcaot.aot.graph.graph_checks import Roles
from funcaot.aot.graph.lru import Derived
from funcaot.aot.graph.tensor_spec import TensorSpec, spec_of
from funcaot.aot.lowering.program import Settings
from funcaot.aot.reader import reader
from funcaot.aot.segment.backward_effects import reachable
from funcaot.aot.segment.backward_sizes import refuse_opaque
from funcaot.aot.segment.call import SegmentFunctions
from funcaot.aot.segment.in_place import InPlace, plan_in_place
from funcaot.aot.segment.segment import Operand, Segment
from funcaot.aot.signature.signature import Signature
from funcaot.aot.signature.sizes import SizeEnvironment, SizeError, Sizes, concrete
from funcaot.aot.state.state_effects import Call, StateEffects
from funcaot.aot.state.state_tracker import StateTracker
from funcaot.aot.tape.storages import refuse_missing, used_inputs
from funcaot.classes.premise import PremiseFailed


@dataclass(eq=False)
class Entry:
    """A captured and compiled call.

    Attributes:
        signature: What calls it serves.
        capture: The tape and what the function did on it.
        effects: Mutations and aliases.
        functions: The segment and the Functions made for it.
        read_lifted: Reads the closed-over tensors, or None if the call has no environment.
        lifted_specs: What they looked like at capture.
        differentiable: Whether autograd records calls.
        written: Inputs that the function writes to; which others share their memory matters.
        placed: Inputs of whose storages it names places that may be outside of them.
        grown: Inputs that it resizes to more elements.
        overwritten: Operands of the graph that the epilogue overwrites.
        watched: Tensors of the caller whose versions a backward checks.
        reachable: Inputs that a custom backward can get hold of, so that it might write to them.
        in_place: How the graph writes to inputs by itself, if it does.
        gradients: What happens to ``.grad``, if something does; then the captured function
            returns ``(result, values)``.
        state: What the function stores in attributes and the like, if it does; likewise.
        sizes: Sizes that it leaves open, if it does; the effects have expressions of them.
        timings: Seconds per stage.
        calls: How often it was found in the cache.
        generations: How often code was generated for its call.
        reason: Why no other entry served the call that it was made for.
    """

    signature: Signature
    capture: Capture
    effects: Effects
    functions: SegmentFunctions
    read_lifted: reader.Reader | None
    lifted_specs: tuple[TensorSpec, ...]
    differentiable: bool
    written: frozenset[int]
    placed: frozenset[int]
    grown: frozenset[int]
    overwritten: tuple[int, ...]
    watched: tuple[Watched, ...]
    reachable: tuple[int, ...]
    in_place: InPlace | None = None
    gradients: GradientEffects | None = None
    state: StateEffects | None = None
    sizes: Sizes | None = None
    timings: dict[str, float] = field(default_factory=dict)
    calls: int = 0
    generations: int = 0
    reason: str = ""
    _effects: Derived[tuple[int, ...], Effects] = field(default_factory=Derived)

    @property
    def name(self) -> str:
        """The user's function, for messages."""
        segment = self.functions.segment
        return "the function" if segment is None else segment.settings.name

    @cached_property
    def premises(self) -> tuple[str, ...]:
        """What the program takes for granted about values."""
        nodes = [node for node in self.capture.effect_nodes if graphs.is_premise(node)]
        return tuple(dict.fromkeys(node.target.opaque.reason for node in nodes))  # type: ignore[union-attr]

    @property
    def is_plain(self) -> bool:
        """Whether a call needs its graph and views only: no check, no grad mode of its own."""
        own_grad_mode = self.differentiable and not self.signature.ambient.grad_mode
        own_grad_mode |= self.capture.leaves_grad_mode is not None
        own_grad_mode |= self.has_hidden_leaf or any(self._retained)
        return not (own_grad_mode or self.placed or self.reachable or self.watched)

    @property
    def depends_on_memory(self) -> bool:
        """Whether it matters which inputs share memory and where they lie in it."""
        return bool(self.written or self.placed)

    def changes_looks(self, mutation: Mutation) -> bool:
        """Whether an input has another spec once a mutation was replayed."""
        if mutation.layout is not None or mutation.source is not None:
            return True
        spec = self.capture.slots[mutation.index].spec
        starts = mutation.graded is not None and not spec.requires_grad
        return starts or bool(mutation.attributes_before or mutation.attributes_after)

    @cached_property
    def has_hidden_leaf(self) -> bool:
        """Whether results require grad only because of tensors that the function made itself."""
        segment = self.functions.segment
        return (
            self.differentiable
            and segment is not None
            and all(operand.leaf is None for operand in segment.operands)
        )

    def lifted(
        self, function: Callable[..., Any], leaves: Sequence[Any]
    ) -> tuple[torch.Tensor, ...] | None:
        """The closed-over tensors now, or None if the entry doesn't fit them any more."""
        tensors = () if self.read_lifted is None else self.read_lifted(function, leaves)
        if tensors is not None and self.gradients is not None:
            tensors = self.gradients.read(leaves, tensors)
        forward_mode = self.signature.ambient.forward_mode
        if tensors is None or len(tensors) != len(self.lifted_specs):
            return None
        identities = {id(tensor) for tensor in tensors}
        if len(identities) < len(tensors) or any(id(leaf) in identities for leaf in leaves):
            # They were different tensors, none of them an argument, when this was captured.
            return None
        for tensor, spec in zip(tensors, self.lifted_specs, strict=True):
            if (
                not isinstance(tensor, torch.Tensor)
                or spec_of(tensor, forward_mode=forward_mode) != spec
            ):
                return None
        return tensors

    def explain(self, function: Callable[..., Any], leaves: Sequence[Any]) -> str:
        """What isn't as it was when this was made, for a call of its signature."""
        changed = "" if self.read_lifted is None else self.read_lifted.explain(function, leaves)
        return changed or "the tensors that it closes over, or which inputs share memory"

    def fits(self, leaves: Sequence[Any], lifted: Sequence[torch.Tensor]) -> bool:
        """Whether a call's inputs share memory the way that the entry was made for."""
        if not self.depends_on_memory:
            return True
        inputs = self._inputs(leaves, lifted)
        regions = find_regions(
            inputs, self.written, self.placed, differentiable=self.signature.ambient.grad_mode
        )
        return regions == self.capture.regions

    @cached_property
    def _retained(self) -> Retained:
        """Tensors that the function called ``retain_grad`` on."""
        return retained(self.capture) if self.differentiable else ((), ())

    @cached_property
    def _used(self) -> frozenset[int]:
        """Inputs whose memory a call reads or writes to."""
        segment = self.functions.segment
        outputs = () if segment is None else segment.output_nodes
        nodes = [slot.node for slot in self.capture.inputs]
        members = {i for i, slot in enumerate(self.capture.inputs) if slot.kind != "plain"}
        return used_inputs(nodes, (*outputs, *self.capture.effect_nodes)) | members | self.written

    def refuse_missing_memory(self, leaves: Sequence[Any], lifted: Sequence[torch.Tensor]) -> None:
        """Refuse a call that would use memory which was freed."""
        refuse_missing(self._inputs(leaves, lifted), self._used, self.name)

    def effects_of(self, leaves: Sequence[Any]) -> Effects:
        """The effects of a call with these leaves."""
        if self.sizes is None:
            return self.effects
        numbers = self.sizes.read(leaves)
        found = self._effects.get(numbers)
        if found is None:
            symbols = self.sizes.environment.symbols
            found = concrete(self.effects, dict(zip(symbols, numbers, strict=True)))
            self._effects[numbers] = found
        return found

    def _inputs(self, leaves: Sequence[Any], lifted: Sequence[torch.Tensor]) -> list[torch.Tensor]:
        inputs = [
            leaves[entry.argument] for entry in self.capture.inputs if entry.argument is not None
        ]
        return [*inputs, *lifted]

    def __call__(
        self,
        leaves: Sequence[Any],
        lifted: Sequence[torch.Tensor],
        call: Call,
        apply: Callable[..., tuple[torch.Tensor, ...]] | None = None,
    ) -> Any:
        """Run the program on a call's flat leaves.

        Args:
            leaves: Leaves of the arguments.
            lifted: The tensors that the function closes over now.
            call: The arguments themselves, ``(args, kwargs)``.
            apply: The segment's Function for calls below all transforms, if this is one.
        """
        if self._writes and nodes.saved_tensor_hooks_active():
            with nodes.raising_hook_errors_last():
                return self._call(leaves, lifted, call, apply)
        return self._call(leaves, lifted, call, apply)

    @cached_property
    def _writes(self) -> bool:
        """Whether a call does more than return something."""
        return bool(self.effects.mutations or self.gradients or self.state)

    def _call(
        self,
        leaves: Sequence[Any],
        lifted: Sequence[torch.Tensor],
        call: Call,
        apply: Callable[..., tuple[torch.Tensor, ...]] | None,
    ) -> Any:
        tensors = self._inputs(leaves, lifted)
        if self.grown:
            refuse_room([tensors[index] for index in self.grown], self.name)
        if self.capture.events.reads_data and functorch.transforms_active():
            refuse_nested_data(tensors, self.name)
        if self.capture.regions:
            inputs = list(tensors)
            for region in self.capture.regions:
                tensors += real_tensors(region, inputs)
        effects = self.effects_of(leaves)
        if effects.mutations:
            epilogue.prepare(effects, tensors)
        in_place, segment = self.in_place, self.functions.segment
        try:
            if in_place is not None and segment is not None and in_place.serves(tensors):
                effects = in_place.effects
                results = segment.assemble(tensors, in_place.run(tensors))
            else:
                results = self._run(self._protect(tensors), apply)
        except PremiseFailed:
            epilogue.undo(effects, tensors)
            raise
        if self.has_hidden_leaf and not functorch.transforms_active():
            results = self._requiring_grad(results)
        outputs = epilogue.finish(effects, tensors, results)
        if (self.watched or self.reachable) and not functorch.transforms_active():
            epilogue.attach(self.watched, self.reachable, tensors, results)
        if any(self._retained):
            retain(self._retained, outputs, tensors)
        result = tree_unflatten(outputs, self.capture.tree)
        if self.gradients is not None:
            result, values = result
            self.gradients.apply(leaves, lifted, values)
        if self.state is not None:
            result, values = result
            self.state.apply(leaves, call, values)
        if self.capture.leaves_grad_mode is not None:
            torch.set_grad_enabled(self.capture.leaves_grad_mode)
        return result

    def _protect(self, tensors: Sequence[torch.Tensor]) -> list[torch.Tensor]:
        """What autograd may save must not be the object that the epilogue overwrites."""
        operands = list(tensors)
        under_transforms = functorch.transforms_active()
        for index in self.overwritten:
            tensor = tensors[index]
            if under_transforms or self.signature.ambient.forward_mode:
                operands[index] = tensor.clone()
            elif tensor.requires_grad and self.differentiable:
                # The function may have enabled grad mode itself.
                with torch.enable_grad():
                    operands[index] = edge(tensor)
        return operands

    def _run(
        self,
        operands: Sequence[torch.Tensor],
        apply: Callable[..., tuple[torch.Tensor, ...]] | None,
    ) -> tuple[torch.Tensor | None, ...]:
        functions, segment = self.functions, self.functions.segment
        if segment is None:
            raise RuntimeError("an entry without a program")
        if not segment.output_nodes:
            return segment.assemble(operands, ())
        if apply is not None:
            return segment.assemble(operands, apply(*operands))
        if functorch.transforms_active() or autograd.in_dual_level():
            keeping = self.differentiable or segment.draws
            chosen = functions.keeping if keeping else functions.plain
            return segment.assemble(operands, chosen(operands))
        if self.differentiable:
            with torch.enable_grad():
                return segment.assemble(operands, functions.keeping(operands))
        return segment.assemble(operands, functions.plain.forward(*operands))

    def _requiring_grad(
        self, results: Sequence[torch.Tensor | None]
    ) -> tuple[torch.Tensor | None, ...]:
        """Results as in eager: they require grad, though it leads to nobody's tensor."""
        segment = self.functions.segment
        if segment is None:
            return tuple(results)
        hidden = torch.empty(0, requires_grad=True)
        with torch.enable_grad():
            return tuple(
                HiddenLeaf.apply(hidden, result)
                if result is not None and traced.requires_grad and not result.requires_grad
                else result
                for result, traced in zip(results, segment.outputs, strict=True)
            )


def make_general_entry(
    function: Callable[..., Any],
    sizes: Sizes,
    leaves: Sequence[Any],
    call: Call,
    settings: Settings,
) -> tuple[Entry, tuple[torch.Tensor, ...]]:
    """Capture a call for all sizes that its program can leave open.

    The backward is traced too, for gradients as they usually come: what can't be done with open
    sizes has to be known before the program has run.

    Raises:
        Exception: Whatever goes wrong; then the call has to be captured for its own sizes.
    """
    with sizes.environment.answering(sizes.read(leaves), sizes.conditions.answers):
        entry, lifted = make_entry(function, sizes.signature, leaves, call, settings, sizes)
        segment = entry.functions.segment
        if segment is not None:
            refuse_opaque(segment)
        if segment is not None and segment.output_nodes:
            chosen = entry.functions.keeping if entry.differentiable else entry.functions.plain
    if segment is not None and segment.output_nodes and entry.differentiable:
        chosen.derivatives.foresee_backward(sizes.read(leaves))
    return entry, lifted


def make_entry(
    function: Callable[..., Any],
    signature: Signature,
    leaves: Sequence[Any],
    call: Call,
    settings: Settings,
    sizes: Sizes | None = None,
) -> tuple[Entry, tuple[torch.Tensor, ...]]:
    """Capture a call and prepare its program; nothing of a backward is traced.

    The tensors that the function closes over come with the entry, which doesn't keep them.

    The stages, in order: capture, effects, segment, environment. Compiling happens at the first
    run of each graph.
    """
    timings: dict[str, float] = {}
    clock = _Clock(timings)
    tracker = StateTracker(function, leaves, call, settings.name)
    open_to = None if sizes is None else sizes.environment
    captured, gradients = _captured(tracker, signature, environment=open_to)
    clock.stage("capture")
    effects = analyse(captured, settings.name)
    check_gradients(captured, effects, settings.name)
    clock.stage("effects")
    written = frozenset(
        mutation.index for mutation in effects.mutations if mutation.index < len(captured.inputs)
    )
    placed = placed_inputs(captured)
    sharing = sharing_of(captured, leaves, (written, placed), signature)
    if sharing is not None:
        if sizes is not None:
            raise SizeError("Inputs share memory.", remedy="compile with dynamic=False.")
        captured, gradients = _captured(tracker, signature, sharing)
        effects = analyse(captured, settings.name)
        clock.stage("capture again")
    hidden = () if gradients is None else gradients.hidden
    visible = [value for i, value in enumerate(captured.lifted) if i not in hidden]
    segment = make_segment(captured, effects, settings)
    clock.stage("segment")
    differentiable = any(out.requires_grad for out in segment.graph_outputs)
    plain = sizes is None and not differentiable
    in_place = plan_in_place(captured, effects, segment) if plain else None
    read, state = reader.make_reader(tracker, visible)
    clock.stage("environment")
    entry = Entry(
        signature,
        replace(captured, lifted=()),
        effects,
        SegmentFunctions(segment),
        read,
        tuple(entry.spec for entry in captured.inputs if entry.argument is None),
        differentiable,
        written,
        placed,
        frozenset(
            i for i, slot in enumerate(captured.inputs) if id(slot.tensor) in captured.events.grown
        ),
        tuple(index for index, operand in enumerate(segment.operands) if operand.volatile),
        watched(captured, effects),
        reachable(segment, segment.seen),
        in_place,
        gradients,
        state,
        sizes,
        timings,
    )
    return entry, captured.lifted


def _captured(
    state: StateTracker,
    signature: Signature,
    sharing: Sharing | None = None,
    *,
    environment: SizeEnvironment | None = None,
) -> tuple[Capture, GradientEffects | None]:
    """Run the function on a tape, with what it stores and what it does to ``.grad``."""
    tracker = GradientTracker(state, state.leaves, state.name)
    captured = capture(tracker, signature, state.leaves, state.name, sharing, environment)
    return captured, tracker.effects(captured.lifted)


def make_segment(captured: Capture, effects: Effects, settings: Settings) -> Segment:
    """The differentiable program of a capture: inputs to fresh outputs and new values."""
    # Also one whose shape changes: it counts versions, and the graph saved it as it was.
    volatile = {
        mutation.index
        for mutation in effects.mutations
        if mutation.writes or (mutation.layout and mutation.versions)
    }
    volatile |= {
        index
        for index, slot in enumerate(captured.slots)
        if slot.kind in ("flat", "family", "joined")
    }
    operands = tuple(
        Operand(
            slot.node,
            slot.leaf if _is_leaf(slot) and slot.kind != "member" else None,
            by_value=slot.kind in ("plain", "flat", "joined"),
            volatile=index in volatile,
        )
        for index, slot in enumerate(captured.slots)
    )
    return Segment(
        captured.tape,
        operands,
        effects.results,
        settings,
        settings.name,
        effect_nodes=captured.effect_nodes,
        # A program that only looks at values runs for that, and gives out what it looked at.
        carried=() if effects.results else graphs.premises(captured.effect_nodes)[:1],
        seen=tuple(slot.tensor for slot in captured.slots),
        roles=Roles(effects.shown, frozenset(range(len(effects.results))) - effects.shown),
    )


def _is_leaf(slot: Input) -> bool:
    """Whether gradients are taken with respect to an input.

    One that needs none may have got a gradient's history by what was written to it.
    """
    return slot.leaf.requires_grad and slot.leaf.is_leaf


class _Clock:
    """Seconds since the previous stage."""

    def __init__(self, timings: dict[str, float]) -> None:
        self.timings = timings
        self.last = time.perf_counter()

    def stage(self, name: str) -> None:
        now = time.perf_counter()
        self.timings[name] = now - self.last
        self.last = now
