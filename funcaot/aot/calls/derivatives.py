"""The derivatives of a segment in one form: found among those that exist, or traced."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Hashable, Sequence
from typing import Any, Generic, Protocol, TypeAlias, TypeVar

import torch

from funcaot._torch.autograd import autograd
from funcaot._torch.distributed.settings import how_it_dispatches
from funcaot._torch.levels import functorch
from funcaot._torch.levels.situation import situation
from funcaot._torch.levels.thread_state import StateKept
from funcaot._torch.tensors.guards import autocast_state
from funcaot.aot.graph.lru import Derived
from funcaot.aot.graph.tensor_spec import TensorSpec, spec_of
from funcaot.aot.pipeline import AnyPushforward, compile_backward, compile_pushforward
from funcaot.aot.segment.backward import Backward, BackwardKey, tangent_specs
from funcaot.aot.segment.backward_sizes import BackwardSizes, refuse_forward_mode
from funcaot.aot.segment.forward_mode import (
    FusedPushforward,
    Pushforward,
    trace_fused,
    trace_pushforward,
)
from funcaot.aot.segment.forward_trace import refuse_hidden_writes
from funcaot.aot.segment.segment import Form, Segment
from funcaot.aot.subclasses.carried import OF_THIS_CALL
from funcaot.aot.subclasses.identity import objects_inside, pattern_of
from funcaot.aot.subclasses.refusals import level_refusal, refuse_behind_levels
from funcaot.aot.subclasses.structure import is_wrapper
from funcaot.base.scopes import holding


class Calls(Protocol):
    """What is made of a derivative's segment, to call it (see ``call.SegmentFunctions``)."""

    def prepare(self, *, differentiable: bool) -> None:
        """Make what will be asked for, while questions about open sizes are noted."""


Made = TypeVar("Made", bound=Calls)
Key = TypeVar("Key", bound=Hashable)
Specs: TypeAlias = tuple[TensorSpec | None, ...]


class Derivatives(Generic[Made]):
    """Backwards and pushforwards traced so far, each with what calls it.

    Attributes:
        backwards: By what they are specialized on.
        pushforwards: Forward-mode derivatives of a forward that has run.
        fused: Programs for primal and tangent together.
        joined: Those of segments that have more outputs.
        sizes: How backwards know their open sizes, if the segment has any.
    """

    def __init__(
        self, segment: Segment, form: Form, make: Callable[[Segment | None], Made]
    ) -> None:
        """Trace nothing yet.

        Args:
            segment: What is differentiated.
            form: What it keeps.
            make: Makes what calls a derivative's segment.
        """
        self._segment = segment
        self._form = form
        self._make = make
        self.backwards: Derived[BackwardKey, tuple[Backward, Made]] = Derived()
        self.pushforwards: Derived[Specs, tuple[Pushforward, Made]] = Derived()
        self.fused: Derived[Specs, tuple[FusedPushforward, Made]] = Derived()
        self.joined: list[Derivatives[Made]] = []
        self.sizes = self._make_sizes()

    def with_more(self, segment: Segment, form: Form) -> Derivatives[Made]:
        """Those of a segment that has this one's outputs and others, called in the same way."""
        found = Derivatives(segment, form, self._make)
        self.joined.append(found)
        return found

    @property
    def traced(self) -> list[tuple[Backward, Made]]:
        """Each backward so far, with what calls it."""
        own = list(self.backwards.values())
        return [*own, *(pair for joined in self.joined for pair in joined.traced)]

    def _make_sizes(self) -> BackwardSizes | None:
        if self._segment.tape.sizes is None:
            return None
        return BackwardSizes(self._segment, self._form)

    def backward(
        self,
        needs: tuple[bool, ...],
        edges: tuple[int, ...],
        tangents: Sequence[torch.Tensor | None],
        values: Sequence[torch.Tensor],
        tried: list[Backward] | None = None,
        stops: tuple[int, ...] = (),
    ) -> tuple[Backward, Made]:
        """The backward for tangents like these, traced if there is none.

        Args:
            needs: Which operands need a gradient.
            edges: Operands that are passed on only for their autograd edge.
            tangents: One per output of the graph.
            values: What the forward kept.
            tried: Backwards that were made for other values. One that is traced now is added:
                no other one can be better.
            stops: Positions in ``Segment.shown`` of tensors beyond which no gradient goes; theirs
                are asked for too.
        """
        tried = [] if tried is None else tried
        if self._segment.tape.wrappers.used and functorch.under_transforms(tangents):
            raise level_refusal(self._segment.settings.name)
        specs, sizes = tangent_specs(tangents), ()
        if self.sizes is not None:
            sizes = self.sizes.read(values)
            specs = self.sizes.general(specs, sizes)
        create_graph = autograd.gradients_are_differentiated()
        asked_by = _asked_by() if self._segment.calls_functions else ""
        key = BackwardKey(
            needs, specs, create_graph, edges, autocast_state(), asked_by, stops=stops
        )
        if self._segment.tape.wrappers.used or any(map(is_wrapper, tangents)):
            pattern = pattern_of(tangents, lambda: _objects_of_this_call(values))
            key = key._replace(dispatch=how_it_dispatches(), pattern=pattern)
        key, found = self._known(key, sizes, tried)
        if found is not None:
            return found
        with self._segment.settings.lock, StateKept():
            key, found = self._known(key, sizes, tried)
            if found is None:
                found = self._traced(key, sizes, tangents, values, tried)
                tried.append(found[0])
            return found

    def _known(
        self, key: BackwardKey, sizes: tuple[int, ...], tried: Sequence[Backward] = ()
    ) -> tuple[BackwardKey, tuple[Backward, Made] | None]:
        """The backward of a key that is valid for some open sizes; or the key for a new one."""
        while True:
            found = self.backwards.get(key)
            if found is None:
                return key, found
            conditions, read = found[0].conditions, found[0].read
            fits = found[0] not in tried and (conditions is None or conditions.hold(sizes))
            if fits and (read is None or read()):
                return key, found
            key = key._replace(variant=key.variant + 1)

    def _traced(
        self,
        key: BackwardKey,
        sizes: tuple[int, ...],
        tangents: Sequence[torch.Tensor | None],
        values: Sequence[torch.Tensor],
        tried: Sequence[Backward] = (),
    ) -> tuple[Backward, Made]:
        """Trace a backward; the caller holds the lock."""
        segment = self._segment
        segment.tape.wrappers.refuse_changed()
        conditions = None if self.sizes is None else self.sizes.conditions()
        noting = contextlib.nullcontext()
        if self.sizes is not None and conditions is not None:
            noting = self.sizes.environment.answering(sizes, conditions.answers)
        with noting, holding(segment.tape, asked_by=key.asked_by):
            backward = compile_backward(segment, self._form, key, tangents, values, conditions)
            found = (backward, self._make(backward.segment))
            if conditions is not None and backward.segment is not None:
                found[1].prepare(differentiable=key.create_graph)
        segment.settings.statistics.backward_traces += 1
        self.backwards[key] = found
        return found

    def foresee_backward(self, sizes: tuple[int, ...]) -> None:
        """Trace the backward that is usual, before the forward has run; none is compiled.

        Where it reads values of gradients, it is traced for ones. A backward with others is
        traced for them. Where the function itself ran a backward that freed the graph of what it
        leaves somewhere, eager refuses that one's backward; those of other results are traced.

        Args:
            sizes: Open sizes of the call.

        Raises:
            Exception: If it can't be traced with open sizes.
        """
        if self.sizes is None:
            return
        operands = self._segment.operands
        needs = tuple(operand.leaf is not None for operand in operands)
        saved = {residual.operand for residual in self._form.residuals}
        edges = tuple(index for index, needed in enumerate(needs) if needed and index not in saved)
        specs = self.sizes.expected(self._segment.graph_outputs)
        usual = BackwardKey(needs, specs, False, edges, autocast_state())
        present = [index for index, spec in enumerate(specs) if spec is not None]
        with self._segment.settings.lock, self._segment.tape.values.made_up():
            if self._foreseen(usual, sizes) or len(present) < 2:
                return
            for index in present:
                only = tuple(spec if at == index else None for at, spec in enumerate(specs))
                self._foreseen(usual._replace(tangents=only), sizes)

    def _foreseen(self, key: BackwardKey, sizes: tuple[int, ...]) -> bool:
        """Trace a backward for gradients of ones; False if autograd has freed its graph."""
        assert self.sizes is not None
        try:
            self._traced(key, sizes, self.sizes.stand_ins(key.tangents, sizes), ())
        except RuntimeError as error:
            if "backward through the graph a second time" not in str(error):
                raise
            return False
        return True

    def fused_pushforward(
        self, primals: Sequence[torch.Tensor], tangents: Sequence[torch.Tensor | None]
    ) -> tuple[FusedPushforward, Made]:
        """The program for primal and tangent together, traced if there is none."""

        def trace(key: Specs) -> FusedPushforward:
            for operand, primal in zip(self._segment.operands, primals, strict=True):
                self._segment.tape.provide(operand.node, primal)
            return trace_fused(self._segment, self._form, key, tangents)

        return self._pushed(self.fused, tangents, trace)

    def pushforward(self, tangents: Sequence[torch.Tensor | None]) -> tuple[Pushforward, Made]:
        """The program for tangents alone, of a forward that has run; traced if there is none."""
        return self._pushed(
            self.pushforwards,
            tangents,
            lambda key: trace_pushforward(self._segment, self._form, key),
        )

    def _pushed(
        self,
        known: Derived[Specs, tuple[AnyPushforward, Made]],
        tangents: Sequence[torch.Tensor | None],
        trace: Callable[[Specs], AnyPushforward],
    ) -> tuple[AnyPushforward, Made]:
        refuse_forward_mode(self._segment)
        if self._segment.tape.wrappers.used:
            raise level_refusal(self._segment.settings.name)
        refuse_behind_levels(tangents, self._segment.settings.name)
        refuse_hidden_writes(self._segment, tangents)
        key = tuple(
            None if tangent is None else spec_of(tangent).without_grad() for tangent in tangents
        )
        found = _that_fits(known, key)
        if found is None:
            with self._segment.settings.lock, StateKept():
                found = _that_fits(known, key)
                if found is None:
                    tape = self._segment.tape
                    with holding(tape, asked_by="tangents", transposes=True):
                        pushed = compile_pushforward(self._segment, lambda: trace(key))
                    found = known[key] = (pushed, self._make(pushed.segment))
        return found

    def forget(self, derivative: object) -> None:
        """Drop a derivative that was traced for values that a call didn't have."""
        _forget(self.backwards, derivative)
        _forget(self.fused, derivative)


def _that_fits(
    known: Derived[Specs, tuple[AnyPushforward, Made]], key: Specs
) -> tuple[AnyPushforward, Made] | None:
    """A pushforward of a key whose rule would do now what it did when it was traced."""
    found = known.get(key)
    if found is None:
        return None
    read = found[0].read
    return found if read is None or read() else None


def _objects_of_this_call(values: Sequence[torch.Tensor]) -> list[Any]:
    """Those among metadata that a call was given, and those that its forward kept."""
    kept = [each for value in values for _, _, each in objects_inside(value)]
    return [*OF_THIS_CALL.objects, *kept]


def _asked_by() -> str:
    """What asks for a backward, where the rules of Functions may tell."""
    around = situation()
    return "levels" if around.transforms else "tangents" if around.duals else ""


def _forget(known: Derived[Any, Any], derivative: object) -> None:
    for key in [key for key, found in known.items() if found[0] is derivative]:
        known.pop(key, None)
