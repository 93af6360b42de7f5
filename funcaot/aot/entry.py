"""One signature's program at run time: prologue, segment, epilogue."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import torch

from funcaot._torch import autograd, functorch
from funcaot._torch.pytree import tree_unflatten
from funcaot.aot import reader
from funcaot.aot.call import SegmentFunctions
from funcaot.aot.capture import Capture, capture
from funcaot.aot.effects import Effects, Mutation, analyse
from funcaot.aot.grad_effects import GradientEffects, GradientTracker
from funcaot.aot.program import Settings
from funcaot.aot.segment import Operand, Segment
from funcaot.aot.signature import Signature
from funcaot.aot.spec import TensorSpec, spec_of
from funcaot.errors import UnsupportedError


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
        gradients: What happens to ``.grad``, if something does; then the captured function
            returns ``(result, values)``.
        timings: Seconds per stage.
        calls: How often it was found in the cache.
        generations: How often code was generated for its call.
    """

    signature: Signature
    capture: Capture
    effects: Effects
    functions: SegmentFunctions
    read_lifted: reader.Reader | None
    lifted_specs: tuple[TensorSpec, ...]
    differentiable: bool
    gradients: GradientEffects | None = None
    timings: dict[str, float] = field(default_factory=dict)
    calls: int = 0
    generations: int = 0

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

    def __call__(
        self,
        leaves: Sequence[Any],
        lifted: Sequence[torch.Tensor],
        apply: Callable[..., tuple[torch.Tensor, ...]] | None = None,
    ) -> Any:
        """Run the program on a call's flat leaves.

        Args:
            leaves: Leaves of the arguments.
            lifted: The tensors that the function closes over now.
            apply: The segment's Function for calls below all transforms, if this is one.
        """
        inputs = [
            leaves[entry.argument] for entry in self.capture.inputs if entry.argument is not None
        ]
        inputs += lifted
        self._check_overlap(inputs)
        results = self._run(self._protect(inputs), apply)
        for mutation in self.effects.mutations:
            write_back(mutation, inputs[mutation.index], results[mutation.value])
        outputs = [
            output.value
            if output.result is None and output.source is None
            else _finish(output, inputs, results)
            for output in self.effects.outputs
        ]
        result = tree_unflatten(outputs, self.capture.tree)
        if self.gradients is None:
            return result
        result, values = result
        self.gradients.apply(leaves, lifted, values)
        return result

    def _protect(self, inputs: Sequence[torch.Tensor]) -> list[torch.Tensor]:
        """What autograd may save must not be the object that the epilogue overwrites."""
        operands = list(inputs)
        under_transforms = functorch.transforms_active()
        for mutation in self.effects.mutations:
            tensor = inputs[mutation.index]
            if under_transforms or tensor.requires_grad:
                operands[mutation.index] = tensor.clone()
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
            return segment.assemble(operands, functions.keeping(operands))
        form = functions.plain.form
        made = form.program(*[operands[i] for i in form.positions])
        return segment.assemble(operands, made)

    def _check_overlap(self, inputs: Sequence[torch.Tensor]) -> None:
        """A mutated input must not share its storage with another input."""
        if not self.effects.mutations:
            return
        storages = [
            functorch.fully_unwrapped(tensor).untyped_storage().data_ptr() for tensor in inputs
        ]
        for mutation in self.effects.mutations:
            storage = storages[mutation.index]
            if storage and storages.count(storage) > 1:
                raise UnsupportedError(
                    f"Input {mutation.index} is mutated and shares its storage with another input.",
                    remedy="pass one tensor and make the views of it inside the compiled function.",
                )


def write_back(mutation: Mutation, target: torch.Tensor, value: torch.Tensor | None) -> None:
    """Give an input its new value, as autograd would have seen it."""
    if value is None:
        raise RuntimeError("a mutation without a value")
    if mutation.with_grad:
        target.copy_(value)
    elif mutation.hidden:
        target.data.copy_(value)
    else:
        with torch.no_grad():
            target.copy_(value)


def _finish(output: Any, inputs: Sequence[torch.Tensor], results: Sequence[Any]) -> Any:
    base = results[output.result] if output.source is None else inputs[output.source]
    return base if output.view is None else output.view(base)


def make_entry(
    function: Callable[..., Any], signature: Signature, leaves: Sequence[Any], settings: Settings
) -> tuple[Entry, tuple[torch.Tensor, ...]]:
    """Capture a call and prepare its program; nothing of a backward is traced.

    The tensors that the function closes over come with the entry, which doesn't keep them.

    The stages, in order: capture, effects, segment, environment. Compiling happens at the first
    run of each graph.
    """
    timings: dict[str, float] = {}
    clock = _Clock(timings)
    tracker = GradientTracker(function, leaves, settings.name)
    captured = capture(tracker, signature, leaves, settings.name)
    gradients = tracker.effects(captured.lifted)
    hidden = () if gradients is None else gradients.hidden
    environment = [value for i, value in enumerate(captured.lifted) if i not in hidden]
    clock.stage("capture")
    effects = analyse(captured, settings.name)
    clock.stage("effects")
    segment = make_segment(captured, effects, settings)
    clock.stage("segment")
    read = reader.make_reader(function, leaves, environment, settings.name)
    clock.stage("environment")
    entry = Entry(
        signature,
        replace(captured, lifted=()),
        effects,
        SegmentFunctions(segment),
        read,
        tuple(entry.spec for entry in captured.inputs if entry.argument is None),
        signature.ambient.grad_mode and any(out.requires_grad for out in segment.graph_outputs),
        gradients,
        timings,
    )
    return entry, captured.lifted


def make_segment(captured: Capture, effects: Effects, settings: Settings) -> Segment:
    """The differentiable program of a capture: inputs to fresh outputs and new values."""
    volatile = {
        mutation.index
        for mutation in effects.mutations
        if not captured.inputs[mutation.index].spec.requires_grad
    }
    operands = tuple(
        Operand(
            entry.node,
            entry.leaf if entry.spec.requires_grad else None,
            volatile=index in volatile,
        )
        for index, entry in enumerate(captured.inputs)
    )
    return Segment(
        captured.tape,
        operands,
        effects.results,
        settings,
        settings.name,
        effect_nodes=captured.effect_nodes,
    )


class _Clock:
    """Seconds since the previous stage."""

    def __init__(self, timings: dict[str, float]) -> None:
        self.timings = timings
        self.last = time.perf_counter()

    def stage(self, name: str) -> None:
        now = time.perf_counter()
        self.timings[name] = now - self.last
        self.last = now
