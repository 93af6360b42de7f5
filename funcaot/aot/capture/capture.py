"""Capture: run a function once on the tape."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import torch
from torch import fx

from funcaot._torch.autograd import autograd
from funcaot._torch.distributed.asked import Asked, noting_what_is_asked
from funcaot._torch.levels import functorch
from funcaot._torch.levels.made_wrappers import noticing_wrappers
from funcaot._torch.tensors.pytree import TreeSpec, tree_flatten, tree_unflatten
from funcaot._torch.tensors.reads import asking_for_reads
from funcaot._torch.tensors.sizes.called_kinds import kinds_called
from funcaot.aot.capture import inner_tensors
from funcaot.aot.capture.attributes import NOTHING_ATTACHED, AllAttached, Attributes
from funcaot.aot.capture.events import InputEvents
from funcaot.aot.capture.explained import explained
from funcaot.aot.capture.facts import Fact, Facts
from funcaot.aot.capture.grad_effects import GradientEffects, GradientTracker
from funcaot.aot.capture.handlers.call import InProgress
from funcaot.aot.capture.handlers.memory.new_storage import note_new_storage
from funcaot.aot.capture.lifting import Lifting
from funcaot.aot.capture.numbers.calls import put_numbers, returned
from funcaot.aot.capture.shared.held_inputs import held_in
from funcaot.aot.capture.shared.shared_memory import Region, Shared, TracedRegion, trace_region
from funcaot.aot.capture.shared.shared_memory_under_transforms import (
    Joined,
    TracedPlace,
    trace_joined,
)
from funcaot.aot.graph import graphs, spec_sizes
from funcaot.aot.graph.tensor_spec import TensorSpec, spec_of
from funcaot.aot.signature.ambient import read_ambient, refuse_left_behind
from funcaot.aot.signature.dynamic import Opening
from funcaot.aot.signature.histories import History
from funcaot.aot.signature.numbers import Numbers
from funcaot.aot.signature.signature import Constant, Signature
from funcaot.aot.subclasses.identity import pattern_of
from funcaot.aot.tape.tape import Tape
from funcaot.base.scopes import holding
from funcaot.classes.containers import refuse_changed
from funcaot.errors import GraphError


@dataclass(frozen=True, eq=False)
class Input:
    """One tensor that a captured function depends on.

    Attributes:
        spec: Its metadata.
        leaf: The tape's leaf, which gradients are taken with respect to.
        tensor: What the function saw: the leaf, or a non-leaf of the same value.
        node: The node of its value when the function was entered.
        argument: Position among the call's flat leaves, or None for a lifted tensor.
        version: Its count of in-place changes when the function was entered.
        grad_fn: Where its gradient went when the function was entered.
        geometry: Its shape, strides and storage offset then.
        kind: ``plain`` is an input of the graph; a ``member`` is a view of a ``family``'s base,
            which lives in a ``flat`` region (see ``shared_memory``); a ``joined`` one is copied
            into memory that it shares, of which the function sees a view (see
            ``shared_memory_under_transforms``); an ``inner`` one is inside of another input.
        entered: The node of what the function saw, if that isn't ``node``.
    """

    spec: TensorSpec
    leaf: torch.Tensor
    tensor: torch.Tensor
    node: fx.Node
    argument: int | None
    version: int
    grad_fn: Any
    geometry: tuple[Any, ...]
    kind: str = "plain"
    entered: fx.Node | None = None

    def __str__(self) -> str:
        """How a message names it."""
        kind = "a tensor it closes over" if self.argument is None else f"argument {self.argument}"
        return f"{kind} ({self.spec})"


@dataclass(frozen=True, eq=False)
class Capture:
    """A function's run on a tape.

    Attributes:
        tape: The tape.
        inputs: Arguments first, then lifted tensors.
        lifted: The real tensors that were lifted, in order.
        outputs: Flat outputs, tape tensors and other values: the leaves of what the function
            returned, then what ``.grad`` of inputs becomes.
        tree: Structure of what it returned.
        effect_nodes: Nodes that run even if nobody uses their results: random ops, checks.
        regions: Memory that several inputs share.
        shared: For each region the flat memory, then its families' bases.
        events: What happened to inputs that only shows while it happens.
        leaves_grad_mode: The grad mode that it leaves behind, if it switched it.
        forward_mode: Whether the call's tensors may carry tangents.
        gradients: What happens to ``.grad``, if something does.
        attached: Attributes and hooks that it left on inputs and on fresh outputs.
        absent: Attributes that it looked for, by argument, and that weren't there.
        facts: What else it read of real inputs.
        histories: Which inputs it differentiates by which.
        pattern: Which inner tensors of wrappers among the inputs are one object.
        asked: What it asked of the process groups.
    """

    tape: Tape
    inputs: tuple[Input, ...]
    lifted: tuple[torch.Tensor, ...]
    outputs: tuple[Any, ...]
    tree: TreeSpec
    effect_nodes: tuple[fx.Node, ...]
    regions: tuple[Shared, ...]
    shared: tuple[Input, ...]
    events: InputEvents
    leaves_grad_mode: bool | None = None
    forward_mode: bool = False
    gradients: GradientEffects | None = None
    attached: AllAttached = NOTHING_ATTACHED
    absent: tuple[tuple[int, str], ...] = ()
    facts: tuple[Fact, ...] = ()
    histories: tuple[History, ...] = ()
    pattern: tuple[int, ...] = ()
    asked: tuple[Asked, ...] = ()

    @property
    def slots(self) -> tuple[Input, ...]:
        """The inputs, then what regions add: one per operand of the graph."""
        return (*self.inputs, *self.shared)

    def verify(self) -> None:
        """Refuse a capture whose inputs or effects aren't on its tape."""
        nodes = [*(slot.node for slot in self.slots), *self.effect_nodes]
        strangers = [node.name for node in nodes if node.graph is not self.tape.graph]
        if strangers:
            raise GraphError(f"A capture names nodes of another tape: {', '.join(strangers)}.")

    @property
    def visible(self) -> tuple[torch.Tensor, ...]:
        """The lifted tensors that are read by name, and not off another one's ``.grad``."""
        hidden = () if self.gradients is None else self.gradients.hidden
        return tuple(value for i, value in enumerate(self.lifted) if i not in hidden)

    def joined(self, index: int) -> Joined | None:
        """The memory that an input is joined in, if it is."""
        for region in self.regions:
            if isinstance(region, Joined) and any(p.input == index for p in region.places):
                return region
        return None


@dataclass(frozen=True, eq=False)
class Sharing:
    """What an earlier run of the same call found out about shared memory.

    Attributes:
        lifted: The tensors that it lifted.
        regions: Memory that inputs share.
    """

    lifted: tuple[torch.Tensor, ...] = ()
    regions: tuple[Shared, ...] = ()

    @property
    def is_of_several(self) -> bool:
        """Whether a region has several inputs; one alone may need one for its gaps."""
        return bool(self.joined) or any(len(region.members) > 1 for region in self.flat)

    @property
    def flat(self) -> tuple[Region, ...]:
        """Regions that are inputs of the graph."""
        return tuple(region for region in self.regions if isinstance(region, Region))

    @property
    def joined(self) -> tuple[Joined, ...]:
        """Memory that is filled with inputs."""
        return tuple(region for region in self.regions if isinstance(region, Joined))


def capture(
    function: GradientTracker,
    signature: Signature,
    leaves: Sequence[Any],
    name: str,
    sharing: Sharing | None = None,
    opening: Opening | None = None,
) -> Capture:
    """Run a function on fake, functional, proxied tensors with autograd recording.

    Nothing of the backward is traced.

    Args:
        function: Runs the user's function and takes ``.grad`` off the tape's tensors.
        signature: The call's signature.
        leaves: Flat leaves of ``(args, kwargs)``.
        name: The user's function, for messages.
        sharing: Inputs that share memory, if an earlier run found that this matters.
        opening: What the program leaves open.

    Raises:
        UnsupportedError: For what can't be captured (data-dependent values, and so on).
        Exception: Whatever the function raises, unchanged.
    """
    numbers = None if opening is None else opening.numbers
    tape = _tape_for(signature, opening)
    sharing = sharing or Sharing()
    given = {id(leaf): leaf for leaf in leaves if isinstance(leaf, torch.Tensor)}
    attributes = Attributes(name)
    entrance = _Entrance(tape, signature, sharing, [*given.values(), *sharing.lifted], attributes)
    known = entrance.add_arguments(leaves, signature)
    seen = {**known, **function.themselves}
    args, kwargs = tree_unflatten(_traced(leaves, seen, numbers), signature.tree)
    grad_mode, forward_mode = signature.ambient.grad_mode, signature.ambient.forward_mode
    events = InputEvents(fixed=entrance.fixed(), shared=bool(sharing.regions))
    in_progress = InProgress(
        tape, name, grad_mode, forward_mode, entrance.inputs, numbers, events, entrance.facts
    )
    lifting = Lifting(in_progress, known, entrance.add, function.themselves)
    lifting.lift_all(sharing.lifted)
    with tape.recording(grad_mode=grad_mode, autocast=True):
        with (
            explained(name, events),
            attributes.noticing(),
            tape.running_function(partial(note_new_storage, in_progress)),
            _entering(tape, lifting) as asked,
        ):
            before = read_ambient()
            result, gradients = function(*args, **kwargs)
            after = read_ambient()
            refuse_left_behind(before, after, name)
        flat, tree = tree_flatten(result)
        outputs = _entered(lifting, (*flat, *gradients))
        inner_tensors.refuse_changed(tape, entrance.inputs, name)
        attached = attributes.take_off([slot.tensor for slot in entrance.inputs], outputs)
    tape.forget_inputs(outputs)
    _note_closed_over(function, tape, lifting.lifted, known)
    return Capture(
        tape,
        tuple(entrance.inputs),
        tuple(lifting.lifted),
        outputs,
        tree,
        tuple(node for node in tape.graph.nodes if graphs.has_effect(node)),
        sharing.regions,
        (*entrance.shared, *inner_tensors.reached(tape, entrance.inputs, outputs)),
        events,
        after.grad_mode if after.grad_mode != before.grad_mode else None,
        forward_mode,
        attached=attached,
        absent=tuple(attributes.missing),
        facts=entrance.facts.noted(lifting.lifted),
        histories=entrance.facts.histories(lifting.lifted),
        pattern=pattern_of([*given.values(), *lifting.lifted]),
        asked=tuple(asked.items()),
    )


@contextlib.contextmanager
def _entering(tape: Tape, lifting: Lifting) -> Iterator[dict[str, Any]]:
    """Let the tape's tensors stand in the places of real ones; what is asked of process groups."""
    open_numbers = lifting.capture.numbers is not None
    with (
        kinds_called() if open_numbers else contextlib.nullcontext(),
        holding(tape.closed_over, mode=lifting),
        noticing_wrappers(lifting.note_made),
        lifting,
        asking_for_reads(lifting),
        noting_what_is_asked() as asked,
    ):
        yield asked
        refuse_changed(tape.kept, lifting.capture.name)


def _tape_for(signature: Signature, opening: Opening | None) -> Tape:
    """A tape for a call, with the symbols of its open sizes."""
    sizes = None if opening is None else opening.sizes
    tape = Tape(None if sizes is None else sizes.environment)
    if signature.ambient.forward_mode or functorch.transforms_active():
        tape.expect_tangents()
    return tape


def _entered(lifting: Lifting, values: Sequence[Any]) -> tuple[Any, ...]:
    """What a function returned, with the tape's tensors."""
    outputs = tuple(lifting.replace(returned(value)) for value in values)
    history = lifting.capture.events.history
    if history.changes:
        history.inputs.update(id(slot.tensor) for slot in lifting.capture.inputs)
        outputs, _ = history.refreshed(outputs, lifting.capture.name)
    return outputs


def _note_closed_over(
    function: GradientTracker,
    tape: Tape,
    lifted: Sequence[torch.Tensor],
    known: dict[int, torch.Tensor],
) -> None:
    """Keep what stands for real tensors, for a backward that is given a callable with them.

    The code of rules that run later is noted, since tensors that they lead to were taken.
    """
    function.note_code(tape.closed_over.of_rules, tape.closed_over.names)
    if tape.called_plainly:
        tape.closed_over.add((real, known[id(real)]) for real in lifted)


def _traced(
    leaves: Sequence[Any], known: dict[int, torch.Tensor], numbers: Numbers | None
) -> list[Any]:
    """The leaves of a call as the function is to see them."""
    traced = [known.get(id(leaf), leaf) for leaf in leaves]
    if numbers is not None:
        put_numbers(numbers, leaves, traced)
    return traced


class _Entrance:
    """Puts a call's tensors on the tape, in order."""

    def __init__(
        self,
        tape: Tape,
        signature: Signature,
        sharing: Sharing,
        tensors: Sequence[torch.Tensor],
        attributes: Attributes,
    ) -> None:
        self.tape = tape
        self.tensors = tensors
        self.held: dict[int, Input] = {}
        self.forward_mode = signature.ambient.forward_mode
        self.inputs: list[Input] = []
        self.open: list[tuple[torch.Tensor, TensorSpec]] = []
        self.attributes = attributes
        self.facts = Facts()
        self.regions = sharing.flat
        self.joined = {
            index: place
            for region in sharing.joined
            for index, place in trace_joined(tape, region, tensors).items()
        }
        self.traced = [
            trace_region(tape, region, f"shared_{index}")
            for index, region in enumerate(self.regions)
        ]
        self.members = {
            member.input: (region, position)
            for region, traced in zip(self.regions, self.traced, strict=True)
            for position, member in enumerate(region.members)
        }
        self.by_region = dict(zip(map(id, self.regions), self.traced, strict=True))
        self.shared = tuple(
            slot
            for region, traced in zip(self.regions, self.traced, strict=True)
            for slot in self._slots(region, traced)
        )

    def add(
        self,
        tensor: torch.Tensor,
        argument: int | None = None,
        described: TensorSpec | None = None,
    ) -> torch.Tensor:
        """Enter one input and return what the function sees."""
        seen = self._add(tensor, argument, described)
        if not self.tape.is_at_level:
            self.tape.wrappers.hold(tensor, seen, self.inputs[-1].node)
        self.attributes.enter(tensor, seen, argument)
        self.facts.enter(tensor, seen, argument)
        return seen

    def add_arguments(self, leaves: Sequence[Any], signature: Signature) -> dict[int, torch.Tensor]:
        """Enter the arguments, each once; returns what the function sees, by ``id``."""
        known: dict[int, torch.Tensor] = {}
        self._enter_held(leaves, signature)
        for position, (leaf, described) in enumerate(zip(leaves, signature.leaves, strict=True)):
            if not isinstance(described, Constant) and id(leaf) not in known:
                known[id(leaf)] = self.add(leaf, position, described)
                if spec_sizes.is_open(described):
                    self.open.append((leaf, described))
        return known

    def _add(
        self, tensor: torch.Tensor, argument: int | None, described: TensorSpec | None
    ) -> torch.Tensor:
        index = len(self.inputs)
        spec = described or self._spec_of_lifted(tensor)
        if index in self.held:
            self.inputs.append(self.held[index])
            return self.held[index].tensor
        if index in self.members:
            region, position = self.members[index]
            seen = self.by_region[id(region)].members[position]
            self.inputs.append(self._input(spec, seen, seen, argument, "member"))
            return seen
        if index in self.joined:
            self.inputs.append(self._joined_input(self.joined[index], spec, argument))
            return self.joined[index].view
        made = self._plain(index, tensor, spec, argument)
        self.inputs.append(made)
        return made.tensor

    def _plain(
        self, index: int, tensor: torch.Tensor, spec: TensorSpec, argument: int | None
    ) -> Input:
        """An input with a placeholder of its own."""
        name = f"primal_{index}" if argument is not None else f"lifted_{index}"
        leaf = self.tape.placeholder(name, spec, tensor)
        seen = leaf if spec.is_leaf or not spec.requires_grad else self.tape.non_leaf(leaf)
        return self._input(spec, leaf, seen, argument, "plain")

    def _enter_held(self, leaves: Sequence[Any], signature: Signature) -> None:
        """Enter the inputs that others hold before these, which are to hold the same tensors."""
        if self.tape.is_at_level:
            return
        for index, (region, place) in self.members.items():
            seen = self.by_region[id(region)].members[place]
            node = self.tape.node_of(seen)
            if node is not None:
                self.tape.wrappers.hold(self.tensors[index], seen, node)
        arguments: dict[int, tuple[int, Any]] = {}
        for position, (leaf, described) in enumerate(zip(leaves, signature.leaves, strict=True)):
            arguments.setdefault(id(leaf), (position, described))
        for index in held_in(self.tensors):
            tensor = self.tensors[index]
            argument, described = arguments.get(id(tensor), (None, None))
            if index in self.members or isinstance(described, Constant):
                continue
            spec = described or self._spec_of_lifted(tensor)
            made = self.held[index] = self._plain(index, tensor, spec, argument)
            self.tape.wrappers.hold(tensor, made.tensor, made.node)

    def _spec_of_lifted(self, tensor: torch.Tensor) -> TensorSpec:
        """The spec of a lifted tensor; the ``.grad`` of an argument has its open sizes."""
        spec = spec_of(tensor, forward_mode=self.forward_mode)
        for leaf, opened in self.open:
            if leaf.is_leaf and leaf.grad is tensor:
                return spec_sizes.opened_like(spec, opened, spec_of(leaf))
        return spec

    def fixed(self) -> set[int]:
        """The ``id`` of tensors that can't be reshaped, since inputs are views of one memory."""
        families = {
            id(family.tensor)
            for region, traced in zip(self.regions, self.traced, strict=True)
            for index, family in enumerate(traced.families)
            if sum(member.family == index for member in region.members) > 1
        }
        return families | {id(place.view) for place in self.joined.values()}

    def _joined_input(self, place: TracedPlace, spec: TensorSpec, argument: int | None) -> Input:
        made = self._input(spec, place.leaf, place.value, argument, "joined")
        flat = place.view._base
        return replace(
            made,
            tensor=place.view,
            entered=self.tape.node_of(place.view),
            version=autograd.version_of(place.view),
            grad_fn=None if flat is None else flat.grad_fn,
            geometry=geometry_of(place.view),
        )

    def _slots(self, region: Region, traced: TracedRegion) -> list[Input]:
        flat = self._input(region.spec, traced.flat, traced.flat, None, "flat")
        families = [
            self._input(family.spec, made.leaf, made.tensor, None, "family")
            for family, made in zip(region.families, traced.families, strict=True)
        ]
        return [flat, *families]

    def _input(
        self,
        spec: TensorSpec,
        leaf: torch.Tensor,
        seen: torch.Tensor,
        argument: int | None,
        kind: str,
    ) -> Input:
        node = self.tape.node_of(seen)
        if node is None:
            raise RuntimeError("an input isn't on its tape")
        geometry = geometry_of(seen) if spec.layout is torch.strided else ()
        version = autograd.version_of(seen)
        return Input(spec, leaf, seen, node, argument, version, seen.grad_fn, geometry, kind)


def geometry_of(tensor: torch.Tensor) -> tuple[Any, ...]:
    """Shape, strides and storage offset."""
    return tuple(tensor.shape), tuple(tensor.stride()), tensor.storage_offset()
