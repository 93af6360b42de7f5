"""One call's program, which ``pipeline.compile_forward`` makes and ``runtime`` runs."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any

import torch
from torch import fx

from funcaot._torch.tracing.own_classes import class_that_acts
from funcaot.aot.capture.capture import Capture, Input
from funcaot.aot.capture.shared_inputs import Touched
from funcaot.aot.effects.effects import Effects, Watched
from funcaot.aot.graph import graphs
from funcaot.aot.graph.graph_checks import Roles
from funcaot.aot.graph.settings import Settings
from funcaot.aot.graph.spec_sizes import is_open
from funcaot.aot.graph.tensor_spec import TensorSpec
from funcaot.aot.reader.reader import Reader
from funcaot.aot.segment.dependence import find_links
from funcaot.aot.segment.segment import Operand, Segment
from funcaot.aot.signature.numbers import Numbers
from funcaot.aot.signature.signature import Signature
from funcaot.aot.signature.sizes import Sizes, concrete
from funcaot.aot.state.state_effects import StateEffects

if TYPE_CHECKING:
    from funcaot.aot.segment.in_place import InPlacePlan


@dataclass(frozen=True, eq=False, kw_only=True)
class Forward:
    """A captured call, ready to be compiled.

    Attributes:
        signature: What calls it serves.
        capture: The tape and what the function did on it; the tensors that it lifted aren't kept.
        effects: Mutations and aliases.
        touched: Inputs whose memory matters beyond themselves.
        segment: The differentiable program.
        in_place: How the graph may write to inputs by itself, if it may.
        reader: Reads the closed-over tensors, or None if the call has no environment.
        state: What the function stores in attributes and the like, if it does; then the captured
            function returns ``(result, values)``: new objects may be in both.
        sizes: Sizes that it leaves open, if it does; the effects have expressions of them.
        numbers: Numbers that it leaves open, if it does; it is given tensors for them.
        watched: Tensors of the caller whose versions a backward checks.
        reachable: Inputs that a custom backward can get hold of, so that it might write to them.
        timings: Seconds per stage.
        made_under: Settings of the process that it was captured under.
        meets_classes: Whether a class of tensors said what functions of torch do.
    """

    signature: Signature
    capture: Capture
    effects: Effects
    touched: Touched
    segment: Segment
    in_place: InPlacePlan | None
    reader: Reader | None
    state: StateEffects | None
    sizes: Sizes | None
    numbers: Numbers | None
    watched: tuple[Watched, ...]
    reachable: tuple[int, ...]
    timings: dict[str, float]
    made_under: dict[str, str]
    meets_classes: bool = False

    @cached_property
    def differentiable(self) -> bool:
        """Whether autograd records calls."""
        return self.segment.is_differentiable

    @cached_property
    def meets(self) -> bool:
        """Whether an attribute of a Function keeps what others may write to before a backward."""
        return self.differentiable and bool(self.segment.unchecked)

    @cached_property
    def lifted_specs(self) -> tuple[TensorSpec, ...]:
        """What the closed-over tensors looked like at capture."""
        return tuple(slot.spec for slot in self.capture.inputs if slot.argument is None)

    def lifted_specs_of(self, leaves: Sequence[Any]) -> Sequence[TensorSpec]:
        """What they must look like in a call: a ``.grad`` has the open sizes of its argument."""
        if self.sizes is None or not self._lifts_open_sizes:
            return self.lifted_specs
        symbols = self.sizes.environment.symbols
        by_symbol = dict(zip(symbols, self.sizes.read(leaves), strict=True))
        return concrete(self.lifted_specs, by_symbol)

    @cached_property
    def _lifts_open_sizes(self) -> bool:
        return any(map(is_open, self.lifted_specs))

    @cached_property
    def lifted_classes(self) -> tuple[type | None, ...]:
        """For each closed-over tensor its class, if that says what functions of torch do."""
        lifted = (slot for slot in self.capture.inputs if slot.argument is None)
        return tuple(class_that_acts(getattr(slot, "tensor", None)) for slot in lifted)

    @cached_property
    def grown(self) -> frozenset[int]:
        """Inputs that it resizes to more elements."""
        grown = self.capture.events.grown
        return frozenset(
            i for i, slot in enumerate(self.capture.inputs) if id(slot.tensor) in grown
        )

    @cached_property
    def overwritten(self) -> tuple[int, ...]:
        """Operands of the graph that the epilogue overwrites."""
        return tuple(i for i, operand in enumerate(self.segment.operands) if operand.volatile)


def make_segment(captured: Capture, effects: Effects, settings: Settings) -> Segment:
    """The differentiable program of a capture: inputs to fresh outputs and new values."""
    # Also one whose shape changes: it counts versions, and the graph saved it as it was.
    volatile = {
        mutation.index
        for mutation in effects.mutations
        if mutation.writes or mutation.reassigns or (mutation.reshapes and mutation.versions)
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
    given = {operand.node for operand in operands if operand.by_value}
    computes = any(captured.tape.node_of(result) not in given for result in effects.results)
    segment = Segment(
        captured.tape,
        operands,
        effects.results,
        settings,
        settings.name,
        effect_nodes=captured.effect_nodes,
        carried=() if computes else _carried(captured),
        seen=tuple(slot.tensor for slot in captured.slots),
        roles=Roles(effects.shown, frozenset(range(len(effects.results))) - effects.shown),
    )
    find_links(segment, captured, effects)
    return segment


def _carried(captured: Capture) -> tuple[fx.Node, ...]:
    """What a program gives out that computes nothing: it runs for what its nodes do besides."""
    found = graphs.that_must_run(captured.effect_nodes)[-1:]
    if found or not captured.effect_nodes:
        return found
    with captured.tape.recording(grad_mode=False):
        nothing = torch.empty(0)
    node = captured.tape.node_of(nothing)
    return () if node is None else (node,)


def _is_leaf(slot: Input) -> bool:
    """Whether gradients are taken with respect to an input.

    One that needs none may have got a gradient's history by what was written to it.
    """
    return slot.leaf.requires_grad and slot.leaf.is_leaf
