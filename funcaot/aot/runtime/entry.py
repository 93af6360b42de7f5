"""One signature's program at run time: prologue, segment, epilogue."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from functools import cached_property
from typing import Any

import torch

from funcaot._torch.autograd import nodes
from funcaot._torch.distributed import asked
from funcaot._torch.distributed.collectives import place_in
from funcaot._torch.levels.situation import Situation, situation
from funcaot._torch.tensors.pytree import tree_unflatten
from funcaot._torch.tracing.own_classes import class_that_acts
from funcaot.aot.calls import own_nodes
from funcaot.aot.calls.call import SegmentFunctions
from funcaot.aot.calls.in_place_call import InPlace
from funcaot.aot.capture.facts import changed_of, hold
from funcaot.aot.capture.inner_tensors import ways
from funcaot.aot.capture.nested_data import refuse_nested_data
from funcaot.aot.capture.shared.shared_memory import find_regions, real_tensors
from funcaot.aot.capture.shared_inputs import refuse_room
from funcaot.aot.effects import epilogue
from funcaot.aot.effects.effects import Effects, Mutation
from funcaot.aot.effects.retained import Retained, retain, retained
from funcaot.aot.graph import graphs
from funcaot.aot.graph.edges import edge, requiring_grad
from funcaot.aot.graph.lru import Derived
from funcaot.aot.graph.settings import Settings
from funcaot.aot.graph.tensor_spec import spec_of
from funcaot.aot.pipeline import compile_forward
from funcaot.aot.saved.forwards import Derived as KnownOfTape
from funcaot.aot.segment.backward_sizes import refuse_opaque
from funcaot.aot.segment.forward import Forward
from funcaot.aot.segment.unreached import unreached
from funcaot.aot.signature.dynamic import Opening
from funcaot.aot.signature.leaf_names import leaf_names
from funcaot.aot.signature.nearest import nearest
from funcaot.aot.signature.signature import Signature
from funcaot.aot.signature.sizes import concrete
from funcaot.aot.signature.what_changed import describe_tensors
from funcaot.aot.state.state_effects import Call
from funcaot.aot.subclasses.identity import pattern_of
from funcaot.aot.subclasses.refusals import refuse_forward
from funcaot.aot.subclasses.structure import inside
from funcaot.aot.tape.memory.storages import refuse_missing, used_inputs
from funcaot.classes.premise import PremiseFailed, leaving

_numbers = itertools.count()


class Entry:
    """A captured call that can be run again: prologue, segment, epilogue.

    Attributes:
        forward: Its program.
        signature: What calls it serves.
        capture: The tape and what the function did on it.
        effects: Mutations and aliases.
        differentiable: Whether autograd records calls.
        sizes: Sizes that it leaves open, if it does; the effects have expressions of them.
        numbers: Numbers that it leaves open, if it does.
        functions: The segment and the Functions made for it.
        in_place: The graph that writes to inputs by itself, if there is one.
        number: Grows from entry to entry, of all functions.
        calls: How often it was found in the cache.
        generations: How often code was generated for its call.
        reason: Why no other entry served the call that it was made for.
        made_for: What that call looked like, without anything open.
        left: Why a call left it last: what it was made for, and what there was instead.
    """

    def __init__(self, forward: Forward, settings: Settings) -> None:
        """Make what runs a program; no graph is compiled yet."""
        self.forward = forward
        self.signature = forward.signature
        self.capture = forward.capture
        self.effects = forward.effects
        self.differentiable = forward.differentiable
        self.sizes, self.numbers = forward.sizes, forward.numbers
        self.functions = SegmentFunctions(forward.segment)
        self.in_place = None if forward.in_place is None else InPlace(forward.in_place, settings)
        self.number = next(_numbers)
        self.calls = 0
        self.generations = 0
        self.reason = self.left = ""
        self.made_for: Signature | None = None
        self._effects: Derived[tuple[int, ...], Effects] = Derived()
        self._places = graphs.places_in_groups(self.capture.effect_nodes)

    @property
    def name(self) -> str:
        """The user's function, for messages."""
        return self.forward.segment.settings.name

    @cached_property
    def premises(self) -> tuple[str, ...]:
        """What the program takes for granted about values."""
        nodes = [node for node in self.capture.effect_nodes if graphs.is_premise(node)]
        recorded = getattr(self.capture.tape, "graph", None)
        nodes += () if recorded is None else filter(graphs.keeps_values, recorded.nodes)
        return tuple(dict.fromkeys(node.target.opaque.reason for node in nodes))  # type: ignore[union-attr]

    def leaving(self) -> AbstractContextManager[None]:
        """Put random generators back if a call of it leaves the program that runs inside."""
        return leaving(bool(self.premises), self.capture.tape)

    @property
    def numbers_read(self) -> frozenset[tuple[Any, Any]]:
        """Numbers that the function reads besides its arguments, and that it leaves open."""
        return frozenset() if self.forward.reader is None else self.forward.reader.leaves_open

    def has_its_groups(self) -> bool:
        """Whether the groups that it waits for, or asked of, are as when it was captured."""
        if any(place_in(name) != place for name, place in self._places):
            return False
        return asked.hold(self.capture.asked)

    @property
    def depends_on_ranks(self) -> bool:
        """Whether its program is for one place among some ranks."""
        return bool(self._places or self.capture.asked)

    @property
    def derived(self) -> KnownOfTape:
        """What only its tape knows, for a file."""
        return KnownOfTape(self._unreached, self._used, any(self._retained), self.premises)

    @property
    def is_plain(self) -> bool:
        """Whether a call needs its graph and views only: no check, no grad mode of its own."""
        own_grad_mode = self.differentiable and not self.signature.ambient.grad_mode
        own_grad_mode |= self.capture.leaves_grad_mode is not None
        own_grad_mode |= self._leads_to_nobody or any(self._retained) or bool(self._unreached)
        return not (
            own_grad_mode
            or any(self.forward.segment.links[1:])
            or self.forward.touched.placed
            or self.forward.reachable
            or self.forward.watched
            or self.forward.meets
        )

    @property
    def depends_on_memory(self) -> bool:
        """Whether it matters which inputs share memory and where they lie in it."""
        return bool(self.forward.touched.written or self.forward.touched.placed)

    def changes_looks(self, mutation: Mutation) -> bool:
        """Whether an input has another spec once a mutation was replayed."""
        spec = self.capture.slots[mutation.index].spec
        return any(action.changes_looks(spec) for action in mutation.actions)

    @property
    def is_general(self) -> bool:
        """Whether it serves calls of other sizes or numbers."""
        return self.sizes is not None or self.numbers is not None

    def matches(self, signature: Signature) -> bool:
        """Whether it serves calls of a signature, which need not be its own."""
        opened: Signature | None = signature
        if self.numbers is not None:
            opened = self.numbers.signature(signature)
            if opened is None or not self.numbers.hold(signature):
                return False
        if self.sizes is not None and opened is not None:
            return self.sizes.match(opened)
        return opened == self.signature

    def nearest(self, signature: Signature) -> Signature:
        """What a call looks like that it serves, or was made for, and that is most like another."""
        if self.matches(signature):
            return signature
        return nearest(self.made_for or self.signature, self.sizes, self.numbers, signature)

    def opened(self, leaves: Sequence[Any]) -> Sequence[Any]:
        """A call's leaves, with tensors in place of open numbers."""
        return leaves if self.numbers is None else self.numbers.leaves(leaves)

    def lifted(
        self, function: Callable[..., Any], leaves: Sequence[Any]
    ) -> tuple[torch.Tensor, ...] | None:
        """The closed-over tensors now, or None if the entry doesn't fit them any more."""
        tensors = self._with_hidden(leaves, self._found(function, leaves))
        forward_mode = self.signature.ambient.forward_mode
        if tensors is None or len(tensors) != len(self.forward.lifted_specs):
            return None
        if any(hasattr(leaves[index], name) for index, name in self.capture.absent):
            return None
        if not hold(self.capture.facts, leaves, tensors):
            return None
        if any(history.matters(leaves, tensors) for history in self.capture.histories):
            return None
        if tuple(map(class_that_acts, tensors)) != self.forward.lifted_classes:
            return None
        identities = {id(tensor) for tensor in tensors}
        if len(identities) < len(tensors) or any(id(leaf) in identities for leaf in leaves):
            # They were different tensors, none of them an argument, when this was captured.
            return None
        specs = self.forward.lifted_specs_of(self.opened(leaves))
        for tensor, spec in zip(tensors, specs, strict=True):
            if (
                not isinstance(tensor, torch.Tensor)
                or spec_of(tensor, forward_mode=forward_mode) != spec
            ):
                return None
        return tensors

    def explain(self, function: Callable[..., Any], leaves: Sequence[Any]) -> str:
        """What isn't as it was when this was made, for a call of its signature."""
        reader, found = self.forward.reader, self._found(function, leaves)
        told = self.changed_around(function, leaves)
        names = leaf_names(function, self.signature.tree)
        if not told and found is not None and self.capture.gradients is not None:
            of_found = () if reader is None else reader.names
            told = self.capture.gradients.explain(leaves, found, of_found, names)
        lifted = self._with_hidden(leaves, found)
        if not told and lifted is not None:
            told = changed_of(self.capture.facts, names, leaves, lifted)
        return told or "the tensors that it closes over, or which inputs share memory, are others"

    def changed_around(self, function: Callable[..., Any], leaves: Sequence[Any]) -> str:
        """What the function reads besides its arguments and isn't as it was; empty if all is."""
        reader = self.forward.reader
        if reader is None:
            return ""
        gradients = self.capture.gradients
        hidden = () if gradients is None else gradients.hidden
        specs = [s for place, s in enumerate(self.forward.lifted_specs) if place not in hidden]
        now, forward_mode = self._found(function, leaves), self.signature.ambient.forward_mode
        return reader.explain(function, leaves) or describe_tensors(
            reader.names, specs, now or (), forward_mode=forward_mode
        )

    def _found(
        self, function: Callable[..., Any], leaves: Sequence[Any]
    ) -> tuple[torch.Tensor, ...] | None:
        """What the environment holds of the closed-over tensors; None if it has changed."""
        return () if self.forward.reader is None else self.forward.reader(function, leaves)

    def _with_hidden(
        self, leaves: Sequence[Any], found: tuple[torch.Tensor, ...] | None
    ) -> tuple[torch.Tensor, ...] | None:
        """The same with the ``.grad`` of leaves among them; None if those have changed."""
        if found is None or self.capture.gradients is None:
            return found
        return self.capture.gradients.read(leaves, found)

    def fits(self, leaves: Sequence[Any], lifted: Sequence[torch.Tensor]) -> bool:
        """Whether a call's inputs share memory the way that the entry was made for."""
        pattern = self.capture.pattern
        if self.depends_on_ranks and not self.has_its_groups():
            return False
        if not (self.depends_on_memory or pattern):
            return True
        inputs = self._inputs(leaves, lifted)
        if pattern and pattern_of(inputs) != pattern:
            return False
        regions = find_regions(
            inputs,
            self.forward.touched.written,
            self.forward.touched.placed,
            differentiable=self.signature.ambient.grad_mode,
        )
        return regions == self.capture.regions

    @cached_property
    def _inner(self) -> tuple[tuple[int, tuple[str, ...]], ...]:
        """Operands that are inside of others: of which, and where."""
        return ways(self.capture.slots)

    @cached_property
    def _retained(self) -> Retained:
        """Tensors that the function called ``retain_grad`` on."""
        return retained(self.capture) if self.differentiable else ((), ())

    @cached_property
    def _unreached(self) -> frozenset[int]:
        """Inputs whose history no result depends on."""
        if not self.differentiable:
            return frozenset()
        return unreached(self.forward.segment.graph_outputs, self.capture.slots)

    @cached_property
    def _leads_to_nobody(self) -> bool:
        """Whether results may require grad though no operand does that is passed on with history.

        The function made what they come from itself, or no gradient reaches an input.
        """
        operands = enumerate(self.forward.segment.operands)
        passed_on = {index for index, operand in operands if operand.leaf is not None}
        return self.differentiable and passed_on <= self._unreached

    @cached_property
    def _used(self) -> frozenset[int]:
        """Inputs whose memory a call reads or writes to."""
        outputs = self.forward.segment.output_nodes
        nodes = [slot.node for slot in self.capture.inputs]
        members = {i for i, slot in enumerate(self.capture.inputs) if slot.kind != "plain"}
        return (
            used_inputs(nodes, (*outputs, *self.capture.effect_nodes))
            | members
            | self.forward.touched.written
        )

    def refuse_missing_memory(self, leaves: Sequence[Any], lifted: Sequence[torch.Tensor]) -> None:
        """Refuse a call that would use memory which was freed."""
        refuse_missing(self._inputs(leaves, lifted), self._used, self.name)

    def effects_of(self, leaves: Sequence[Any]) -> Effects:
        """The effects of a call with these leaves."""
        if self.sizes is None:
            return self.effects
        numbers = self.sizes.read(self.opened(leaves))
        found = self._effects.get(numbers)
        if found is None:
            symbols = self.sizes.environment.symbols
            found = concrete(self.effects, dict(zip(symbols, numbers, strict=True)))
            self._effects[numbers] = found
        return found

    def _inputs(self, leaves: Sequence[Any], lifted: Sequence[torch.Tensor]) -> list[torch.Tensor]:
        leaves = self.opened(leaves)
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
        return bool(self.effects.mutations or self.capture.gradients or self.forward.state)

    def _call(
        self,
        leaves: Sequence[Any],
        lifted: Sequence[torch.Tensor],
        call: Call,
        apply: Callable[..., tuple[torch.Tensor, ...]] | None,
    ) -> Any:
        around = situation()
        if self.capture.tape.wrappers.used:
            refuse_forward(around, self.name)
        tensors = self._inputs(leaves, lifted)
        if self.forward.grown:
            refuse_room([tensors[index] for index in self.forward.grown], self.name)
        if self.capture.events.reads_data and around.transforms:
            refuse_nested_data(tensors, self.name)
        if self.capture.regions:
            inputs = list(tensors)
            for region in self.capture.regions:
                tensors += real_tensors(region, inputs)
        if self._inner:
            tensors = [*tensors, *(inside(tensors[index], path) for index, path in self._inner)]
        effects = self.effects_of(leaves)
        if effects.mutations:
            epilogue.prepare(effects, tensors)
        in_place, segment = self.in_place, self.forward.segment
        try:
            if in_place is not None and in_place.serves(tensors, around):
                effects = in_place.effects
                results = segment.assemble(tensors, in_place.run(tensors))
            else:
                brought = self.capture.tape.wrappers.brought
                with brought.given_by(self.capture.inputs, tensors):
                    results = self._run(self._protect(tensors, around), apply, around)
        except PremiseFailed:
            epilogue.undo(effects, tensors)
            raise
        if self._leads_to_nobody and not around.transforms:
            results = requiring_grad(results, self.forward.segment.outputs)
        if self.differentiable and segment.is_told and not around.derives:
            outputs = own_nodes.finish(self.functions.keeping, effects, tensors, results)
        else:
            outputs = epilogue.finish(effects, tensors, results)
        if not around.transforms:
            if self.forward.watched or self.forward.reachable:
                epilogue.attach(self.forward.watched, self.forward.reachable, tensors, results)
            if any(self._retained):
                retain(self._retained, outputs, tensors)
        returned = self.capture.tree.num_leaves
        result = tree_unflatten(outputs[:returned], self.capture.tree)
        if self.capture.gradients is not None:
            values = outputs[returned:]
            self.capture.gradients.apply(leaves, lifted, values)
            self.capture.gradients.apply_to_results(outputs, values)
        if self.forward.state is not None:
            result = self.forward.state.apply(leaves, call, result)
        if self.capture.leaves_grad_mode is not None:
            torch.set_grad_enabled(self.capture.leaves_grad_mode)
        return result

    def _protect(self, tensors: Sequence[torch.Tensor], around: Situation) -> list[torch.Tensor]:
        """What autograd may save must not be the object that the epilogue overwrites."""
        operands = list(tensors)
        cut = frozenset() if around.transforms else self._unreached
        for index in cut:
            operands[index] = tensors[index].detach()
        for index in self.forward.overwritten:
            tensor = tensors[index]
            if around.transforms or self.signature.ambient.forward_mode:
                operands[index] = tensor.clone()
            elif tensor.requires_grad and self.differentiable and index not in cut:
                # The function may have enabled grad mode itself.
                with torch.enable_grad():
                    operands[index] = edge(tensor)
        return operands

    def _run(
        self,
        operands: Sequence[torch.Tensor],
        apply: Callable[..., tuple[torch.Tensor, ...]] | None,
        around: Situation,
    ) -> tuple[torch.Tensor | None, ...]:
        functions, segment = self.functions, self.forward.segment
        if not segment.output_nodes:
            return segment.assemble(operands, ())
        if apply is not None:
            return segment.assemble(operands, apply(*operands))
        if around.derives:
            keeping = self.differentiable or segment.draws
            chosen = functions.keeping if keeping else functions.plain
            return segment.assemble(operands, chosen(operands))
        if self.differentiable:
            with torch.enable_grad():
                return segment.assemble(operands, functions.keeping(operands))
        return segment.assemble(operands, functions.plain.forward(*operands))


def make_general_entry(
    function: Callable[..., Any],
    opening: Opening,
    leaves: Sequence[Any],
    call: Call,
    settings: Settings,
) -> tuple[Entry, tuple[torch.Tensor, ...]]:
    """Capture a call for all sizes and numbers that its program can leave open.

    The backward is traced too, for gradients as they usually come: what can't be done with open
    sizes has to be known before the program has run.

    Raises:
        Exception: Whatever goes wrong; then the call has to be captured for its own sizes.
    """
    sizes, given = opening.sizes, opening.leaves
    noting: Any = nullcontext()
    if sizes is not None:
        noting = sizes.environment.answering(sizes.read(given), sizes.conditions.answers)
    with noting:
        made = compile_forward(function, opening.signature, given, call, settings, opening)
        entry, segment = Entry(made[0], settings), made[0].segment
        if opening.numbers is not None:
            opening.numbers.close(leaves)
        if sizes is not None:
            refuse_opaque(segment)
            if segment.output_nodes:
                chosen = entry.functions.keeping if entry.differentiable else entry.functions.plain
    if sizes is not None and segment.output_nodes and entry.differentiable:
        chosen.derivatives.foresee_backward(sizes.read(given))
    return entry, made[1]


def make_entry(
    function: Callable[..., Any],
    signature: Signature,
    leaves: Sequence[Any],
    call: Call,
    settings: Settings,
) -> tuple[Entry, tuple[torch.Tensor, ...]]:
    """Capture a call; the entry comes with the tensors that the function closes over now."""
    forward, lifted = compile_forward(function, signature, leaves, call, settings)
    return Entry(forward, settings), lifted
