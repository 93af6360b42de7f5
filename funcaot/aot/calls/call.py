"""Calling a segment: the autograd Function made for it, and its backward when invoked."""

from __future__ import annotations

import functools
import operator
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch.autograd import forward_ad

from funcaot import config
from funcaot._torch.autograd import autograd
from funcaot._torch.dynamo.dynamo import hidden_from_dynamo
from funcaot._torch.levels import functorch
from funcaot._torch.levels.situation import situation
from funcaot._torch.levels.thread_state import StateKept
from funcaot._torch.tensors.classes.own_functions import functions_of_classes_off
from funcaot._torch.tracing import tracing
from funcaot.aot.calls.derivatives import Derivatives
from funcaot.aot.calls.early import Early, groups_of, is_worth_it
from funcaot.aot.calls.function_class import function_class
from funcaot.aot.calls.levels import is_plain_call
from funcaot.aot.calls.own_nodes import added, of_derivative, refuse_seen, taken
from funcaot.aot.calls.parts import Parts
from funcaot.aot.calls.program import GraphProgram
from funcaot.aot.calls.samples import are_batched_wrappers, gradients_of_samples
from funcaot.aot.effects import epilogue
from funcaot.aot.segment import backward_effects
from funcaot.aot.segment.backward import Backward
from funcaot.aot.segment.dependence import dependent_on
from funcaot.aot.segment.segment import Form, Segment
from funcaot.aot.segment.wanted_gradients import EngineNeeds
from funcaot.aot.subclasses.carried import OF_THIS_CALL, given_objects
from funcaot.base.tracebacks import shortened
from funcaot.classes.premise import PremiseFailed, leaving
from funcaot.errors import UnsupportedError
from funcaot.operator.operator import custom_function_call


class SegmentFunction:
    """A segment in one form, with the Function class that autograd sees.

    Attributes:
        segment: The segment.
        keeping: Whether it keeps residuals for a backward.
        form: The segment's graph in this form, and what it keeps.
        program: That graph, to be called.
        function: A generated ``torch.autograd.Function``; its outputs are the graph's outputs
            and then the residuals, which are marked non-differentiable.
        derivatives: Its backwards and pushforwards.
        unchecked: Residuals whose versions don't matter, as only attributes hold them.
        engine_needs: What gradients are wanted, by whether they will be differentiated.
        draws: Whether running it draws random numbers (see ``classes.protocol``).
    """

    def __init__(self, segment: Segment, *, keeping: bool) -> None:
        """Make the Function class; nothing is compiled yet."""
        self.segment = segment
        self.keeping = keeping
        self.form: Form = segment.form(keeping=keeping)
        self.program = self._make_program()
        self.draws = self.program.draws
        self.derivatives = self._make_derivatives()
        self.unchecked = frozenset(
            index
            for index, residual in enumerate(self.form.residuals)
            if keeping and residual.node in segment.unchecked
        )
        needing = [i for i, operand in enumerate(segment.operands) if operand.leaf is not None]
        self.engine_needs = {
            create_graph: EngineNeeds(needing, len(segment.operands))
            for create_graph in (False, True)
        }
        self._wanting = needing
        self._early: tuple[tuple[int, ...], Early | None] = ((), None)
        self.function = function_class(self)
        self.apply = autograd.native_apply(self.function)
        self._constant_outputs = tuple(
            index
            for index in range(len(segment.output_nodes))
            if index >= len(segment.graph_outputs) or not segment.graph_outputs[index].requires_grad
        )
        # Constants for reverse mode alone: tangents pass through `no_grad`.
        self._hidden_outputs = frozenset(
            index
            for index in self._constant_outputs
            if segment.order == 0
            and index < len(segment.graph_outputs)
            and segment.graph_outputs[index].dtype.is_floating_point
        )

    def _make_program(self) -> GraphProgram:
        return GraphProgram(self.form.graph, self.segment.settings, self.segment.executables)

    def _make_derivatives(self) -> Derivatives[SegmentFunctions]:
        return Derivatives(self.segment, self.form, SegmentFunctions)

    def __call__(self, operands: Sequence[torch.Tensor]) -> tuple[torch.Tensor, ...]:
        """Call the Function: directly at base, through the operator under transforms."""
        if functorch.under_transforms(operands):
            return custom_function_call(self.function, *operands)
        if autograd.in_dual_level():
            return self._at_dual_level(operands)
        early = self.early
        return self.apply(*operands) if early is None else early.apply(*operands)

    @property
    def early(self) -> Early | None:
        """What runs it where somebody waits for each gradient, below all transforms."""
        limits = self.segment.settings.handed_over.limits
        if not limits or not self.keeping or self.unchecked or self.segment.tape.wrappers.used:
            return None
        known, early = self._early
        if known != limits:
            groups = groups_of(self.segment, limits)
            early = Early(self, groups) if is_worth_it(self.segment, groups) else None
            self._early = (limits, early)
        return early

    def _at_dual_level(self, operands: Sequence[torch.Tensor]) -> tuple[torch.Tensor, ...]:
        pairs = [functorch.unpack_dual(operand) for operand in operands]
        tangents = [tangent for _, tangent in pairs]
        present = [tangent for tangent in tangents if tangent is not None]
        reverse_too = torch.is_grad_enabled() and any(primal.requires_grad for primal, _ in pairs)
        if not present or reverse_too or functorch.has_legacy_batched(present):
            # What reverse mode saves has to carry tangents too, if there is one level for both.
            return self.apply(*operands)
        outputs, pushed = self.pushed_forward([primal for primal, _ in pairs], tangents)
        return tuple(
            output if tangent is None else forward_ad.make_dual(output, tangent)
            for output, tangent in zip(outputs, pushed, strict=True)
        )

    # What the operator's rules ask of a compiled program (see ``classes.protocol``).

    def differentiable(
        self, function: type, operands: tuple[Any, ...]
    ) -> tuple[type, Callable[[Any], Any]]:
        """Every form can be differentiated; ``Entry`` chooses the one that keeps residuals."""
        return function, lambda output: output

    def pushed_forward(
        self, primals: Sequence[torch.Tensor], tangents: Sequence[torch.Tensor | None]
    ) -> tuple[Sequence[torch.Tensor], Sequence[torch.Tensor | None]]:
        """Outputs, residuals among them, and their tangents, by one fused program."""
        entry, functions = self.derivatives.fused_pushforward(primals, tangents)
        if entry.segment is None:
            made = self(primals)
            return made, (None,) * len(made)
        operands = [*primals, *(tangent for tangent in tangents if tangent is not None)]
        try:
            made = functions.chosen(operands)(operands)
        except PremiseFailed:
            if entry.segment.effect_nodes != self.segment.effect_nodes:
                # Its own premises may have failed; it is traced again when it is wanted.
                self.derivatives.forget(entry)
            raise
        finally:
            self.segment.tape.forget_values()
        pushed: list[torch.Tensor | None] = [None] * len(entry.values)
        for index, position in entry.pushed:
            pushed[index] = made[position] if position >= 0 else operands[-1 - position]
        return [made[position] for position in entry.values], pushed

    def values(self, operands: Sequence[torch.Tensor]) -> tuple[torch.Tensor, ...]:
        """Outputs, residuals among them, where nothing is differentiated."""
        return self.program(*[operands[i] for i in self.form.positions])

    # The four rules of the generated Function.

    def forward(self, *operands: torch.Tensor) -> tuple[torch.Tensor, ...]:
        """Run the compiled graph."""
        return self.values(operands)

    def setup_context(
        self, ctx: Any, operands: tuple[torch.Tensor, ...], outputs: tuple[torch.Tensor, ...]
    ) -> None:
        """Save the residuals and, for a backward of the backward, edges to the operands."""
        made = len(self.segment.output_nodes)
        around, hidden = situation(), self._hidden_outputs
        if hidden and not functorch.pushes_forward():
            hidden = frozenset()
        constants = {i for i in self._constant_outputs if i not in hidden}
        constants |= self._constant_at_this_level(ctx.needs_input_grad, operands)
        constant = [*(outputs[i] for i in sorted(constants)), *outputs[made:]]
        if constant:
            ctx.mark_non_differentiable(*constant)
        ctx.set_materialize_grads(False)
        values = [residual.of(operands, outputs) for residual in self.form.residuals]
        if self.segment.tape.wrappers.used:
            ctx.objects = OF_THIS_CALL.objects
        checked = values
        if self.unchecked and not around.transforms:
            ctx.found = self.segment.tape.closed_over.found()
            ctx.unchecked = {index: values[index] for index in self.unchecked}
            checked = [value for i, value in enumerate(values) if i not in self.unchecked]
        saved = {residual.operand for residual in self.form.residuals}
        # A level sees its own needs only; derivatives of other levels flow through these edges too.
        edges = {
            index: operands[index]
            for index, operand in enumerate(self.segment.operands)
            if operand.leaf is not None
            and index not in saved
            and (around.derives or ctx.needs_input_grad[index])
        }
        ctx.edge_indices = tuple(edges)
        if around.transforms:
            ctx.hidden = hidden
            # A tensor on an attribute would escape its level.
            ctx.edges = None
            ctx.save_for_backward(*values, *edges.values())
        else:
            # Not by save_for_backward, as the values aren't read: no version to check.
            ctx.edges = tuple(edges.values())
            ctx.save_for_backward(*checked)
        ctx.save_for_forward(*values, *operands)

    def _constant_at_this_level(
        self, needed: Sequence[bool], operands: Sequence[torch.Tensor]
    ) -> set[int]:
        """Outputs that depend on nothing whose gradient this level wants."""
        if all(map(needed.__getitem__, self._wanting)) or self.segment.tape.wrappers.used:
            return set()
        wanted = [i for i in self._wanting if needed[i]]
        with autograd.forward_grad_enabled(True):
            moves = functorch.pushes_forward() or any(map(functorch.has_tangent, operands))
        if moves or not wanted:
            return set()  # Tangents pass through what reverse mode takes for constant.
        return {i for i, found in enumerate(self.dependence) if found.isdisjoint(wanted)}

    @functools.cached_property
    def dependence(self) -> tuple[frozenset[int], ...]:
        """The operands with gradients that each output depends on."""
        segment = self.segment
        return tuple(dependent_on(segment.operands, output) for output in segment.graph_outputs)

    @hidden_from_dynamo
    def backward(self, ctx: Any, *tangents: torch.Tensor | None) -> tuple[Any, ...]:
        """Find or trace the backward for these tangents and run it."""
        return self.backward_of(ctx, self.saved(ctx), tangents)

    def backward_of(
        self,
        ctx: Any,
        saved: tuple[Any, ...],
        tangents: tuple[torch.Tensor | None, ...],
        stops: tuple[int, ...] = (),
    ) -> tuple[Any, ...]:
        """The same for what a ctx saved: to read that again would call the user's hooks again.

        No gradient goes beyond the tensors of ``Segment.shown`` in ``stops``; it is returned last.
        """
        if functorch.under_transforms(tangents) and are_batched_wrappers(self.segment, tangents):
            return gradients_of_samples(self, ctx, saved, tangents)
        try:
            with functions_of_classes_off(), given_objects(getattr(ctx, "objects", ())):
                return self._run_backward(ctx, saved, tangents, stops)
        except PremiseFailed as failure:
            raise UnsupportedError(
                f"A backward of {self.segment.settings.name} was traced for values that the same "
                f"call then didn't have: {failure}.",
                remedy="compute with the tensor itself (torch.where for a branch on its values).",
            ) from None
        except Exception as error:  # noqa: BLE001 (it is raised again)
            raise shortened(error)  # noqa: B904 (it is the same error)
        finally:
            self.segment.tape.forget_values()

    def _run_backward(
        self,
        ctx: Any,
        saved: tuple[Any, ...],
        tangents: tuple[Any, ...],
        stops: tuple[int, ...],
    ) -> tuple[Any, ...]:
        tangents = tangents[: len(self.segment.output_nodes)]
        refuse_seen(self, ctx, tangents)
        tangents, left = (tangents, []) if stops else taken(ctx, tangents)
        if all(tangent is None for tangent in tangents):
            return added((None,) * len(self.segment.operands), left)
        count = len(self.form.residuals)
        values, edges = saved[:count], saved[count:] if ctx.edges is None else ctx.edges
        if ctx.edges and saved and not stops and not tracing.backward_keeps_graph():
            ctx.edges = ()
        needs = self.needs(ctx)
        present = [tangent for tangent in tangents if tangent is not None]
        tried: list[Backward] = []
        while True:
            found = self.derivatives.backward(
                needs, ctx.edge_indices, tangents, values, tried, stops
            )
            is_new = found[0] in tried
            try:
                with leaving(bool(found[0].premises), self.segment.tape):
                    return added(self._run_found(ctx, found, (values, present, edges)), left)
            except PremiseFailed:
                if is_new or len(tried) >= config.get().backward_layouts:
                    self.derivatives.forget(found[0])
                if is_new:
                    raise
                tried.append(found[0])

    def _run_found(
        self,
        ctx: Any,
        found: tuple[Backward, SegmentFunctions],
        given: tuple[Sequence[Any], Sequence[Any], Sequence[Any]],
    ) -> tuple[Any, ...]:
        entry, functions = found
        values, present, edges = given
        if entry.segment is None:
            return (None,) * len(entry.targets)
        written = getattr(ctx, "watched", ())
        if written:
            epilogue.check_watched(written, entry.reads)
        operands: list[Any]
        if entry.mutations:
            return self._run_with_effects(ctx, found, given)
        if not autograd.gradients_are_differentiated() and is_plain_call(present):
            operands = [*values, *present]
            made = functions.plain.forward(*operands)
            return entry.distribute(entry.segment.assemble(operands, made))
        operands = [
            value if residual.operand is not None else value.detach()
            for value, residual in zip(values, self.form.residuals, strict=True)
        ]
        operands += present
        operands += edges
        return entry.distribute(of_derivative(functions, ctx, functions(operands)))

    def needs(self, ctx: Any) -> tuple[bool, ...]:
        """Which operands' gradients are wanted."""
        # A node that hands over gradients early has one operand more.
        needs = tuple(
            bool(needed) and operand.leaf is not None
            for needed, operand in zip(ctx.needs_input_grad, self.segment.operands, strict=False)
        )
        if functorch.transforms_active():
            # Nothing requires grad there but what the transform asks for.
            return needs
        wanted = self.engine_needs[torch.is_grad_enabled()].of(ctx)
        if wanted is not None:
            needs = tuple(map(operator.and_, needs, wanted))
        ctx.needs = needs
        return needs

    def saved(self, ctx: Any) -> tuple[Any, ...]:
        """What forward saved, read once in each backward: hooks may be called for it."""
        if ctx.edges is not None and not self.form.residuals:
            # Autograd refuses to look once the graph is freed; in eager, too, it may run again.
            return ()
        unchecked = getattr(ctx, "unchecked", None)
        saved = ctx.saved_tensors
        if not unchecked:
            return saved
        now = self.segment.tape.closed_over.found()
        if [*map(id, now)] != [*map(id, ctx.found)]:
            raise UnsupportedError(
                f"A Function's backward in {self.segment.settings.name} reads a tensor that isn't "
                "an operand, and finds another one than there was when its forward ran.",
                remedy="save it with ctx.save_for_backward, or compile a function that runs the "
                "backward too.",
            )
        rest = iter(saved)
        count = len(self.form.residuals)
        values = [unchecked[i] if i in unchecked else next(rest) for i in range(count)]
        return (*values, *rest)

    def _run_with_effects(
        self,
        ctx: Any,
        found: tuple[Backward, SegmentFunctions],
        given: tuple[Sequence[Any], Sequence[Any], Sequence[Any]],
    ) -> tuple[Any, ...]:
        """Run a backward that overwrites inputs or grad_outputs, and overwrite them."""
        entry, functions = found
        backward_effects.check_grad_mode(entry.mutations, self.segment.settings.name)
        held = getattr(ctx, "held", {})
        written = [mutation for mutation in entry.mutations if mutation.operand is not None]
        if entry.segment is None or any(mutation.operand not in held for mutation in written):
            raise UnsupportedError(
                f"A backward inside {self.segment.settings.name} writes to {written[0].name} under "
                "a transform or in a derivative of a higher order.",
                remedy="compute a new tensor there instead.",
            )
        values, present, edges = given
        operands = [*values, *present, *edges, *(held[item.operand] for item in written)]
        if torch.is_grad_enabled():
            results = of_derivative(functions, ctx, functions(operands))
        else:
            results = entry.segment.assemble(operands, functions.plain.forward(*operands))
        backward_effects.replay(entry.mutations, held, present, results)
        return entry.distribute(results)

    def jvp(self, ctx: Any, *tangents: torch.Tensor | None) -> Any:
        """Find or trace the pushforward for these tangents and run it."""
        count = len(self.form.residuals)
        saved = ctx.saved_tensors
        values, operands = saved[:count], saved[count:]
        entry, functions = self.derivatives.pushforward(tangents)
        total = len(self.segment.output_nodes) + sum(
            1
            for residual in self.form.residuals
            if residual.output is not None and residual.output >= len(self.segment.output_nodes)
        )
        hidden = getattr(ctx, "hidden", frozenset())
        if entry.segment is None:
            return tuple(self._zero_tangent(index, hidden) for index in range(total))
        present = [tangent for tangent in tangents if tangent is not None]
        results = iter(functions([*entry.gather(values, operands), *present]))
        return tuple(
            next(results) if index in entry.produced else self._zero_tangent(index, hidden)
            for index in range(total)
        )

    def _zero_tangent(self, index: int, hidden: frozenset[int]) -> torch.Tensor | None:
        """Torch fails an internal check on None for an output that can be differentiated."""
        constant = index in self._constant_outputs and index not in hidden
        if index >= len(self.segment.graph_outputs) or constant:
            return None
        output = self.segment.graph_outputs[index]
        return torch.zeros(output.shape, dtype=output.dtype, device=output.device)


class SegmentFunctions:
    """The forms of one segment as Functions, made when first needed."""

    def __init__(self, segment: Segment | None) -> None:
        """Make none yet."""
        self.segment = segment
        self._functions: dict[bool, SegmentFunction] = {}
        # Of a backward that hands over gradients early: its parts, once they are known.
        self.parts: tuple[Parts | None] | None = None

    def _function(self, *, keeping: bool) -> SegmentFunction:
        found = self._functions.get(keeping)
        if found is None:
            if self.segment is None:
                raise RuntimeError("an empty derivative has no Function")
            with self.segment.settings.lock, StateKept():
                found = self._functions.get(keeping)
                if found is None:
                    found = self._functions[keeping] = self._make(keeping)
        return found

    def _make(self, keeping: bool) -> SegmentFunction:
        if self.segment is None:
            raise RuntimeError("an empty derivative has no Function")
        return SegmentFunction(self.segment, keeping=keeping)

    @property
    def plain(self) -> SegmentFunction:
        """Without residuals: a backward computes again from the operands."""
        return self._function(keeping=False)

    @property
    def keeping(self) -> SegmentFunction:
        """With residuals for a backward."""
        return self._function(keeping=True)

    def prepare(self, *, differentiable: bool) -> None:
        """Make the form that will be asked for, while questions about open sizes are noted."""
        if self.segment is not None and self.segment.output_nodes:
            _ = self.plain
            if differentiable or self.segment.draws:
                _ = self.keeping

    @property
    def reads_values(self) -> bool:
        """Whether a derivative of some order, traced so far, is for values that it has read."""
        found = [pair for each in self.made for pair in each.derivatives.traced]
        return any(backward.premises or following.reads_values for backward, following in found)

    @property
    def made(self) -> tuple[SegmentFunction, ...]:
        """The Functions that exist so far."""
        return tuple(self._functions.values())

    def __call__(self, operands: Sequence[torch.Tensor]) -> tuple[torch.Tensor | None, ...]:
        """Run the segment so that every level in progress can differentiate it."""
        if self.segment is None:
            raise RuntimeError("an empty derivative can't be called")
        return self.segment.assemble(operands, self.chosen(operands)(operands))

    def chosen(self, operands: Sequence[torch.Tensor]) -> SegmentFunction:
        """The form to run: residuals are computed only for who may ask for them."""
        segment = self.segment
        if segment is not None and segment.draws:
            return self.keeping
        if not functorch.transforms_active():
            return self.keeping if torch.is_grad_enabled() else self.plain
        if segment is not None and segment.order > 0:
            # functorch always asks to create a graph; residuals that nobody may want
            # aren't computed, a backward of the backward starts from the operands again.
            return self.plain
        differentiated = any(functorch.requires_grad_at_any_level(operand) for operand in operands)
        return self.keeping if differentiated else self.plain
