"""The autograd node of the common case, generated: no transform, no mode, tangents seen before.

Note [Fast node]: ``call.SegmentFunction`` says what a segment's Function means; the class made
here does the same in straight lines, and calls it for everything that isn't the common case. The
node's ``ctx`` therefore holds what ``SegmentFunction.setup_context`` would have put there. It
differs in one way: residuals aren't outputs, since only forward mode and transforms need them to
be, and neither is active where this class is called.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence
from typing import Any

import torch

from funcaot import config
from funcaot._torch import autograd, functorch, guards, nodes, tracing
from funcaot.aot import graphs
from funcaot.aot.backward import Backward
from funcaot.aot.call import SegmentFunction, SegmentFunctions
from funcaot.aot.fast_run import run_expression
from funcaot.aot.layout import layouts_of
from funcaot.aot.open_checks import OpenChecks, tensor_check
from funcaot.aot.source import Source, listed, unpacked
from funcaot.aot.spec import TensorSpec, spec_of

_PLAIN_BACKWARD = {"key", "segment", "targets", "timings", "conditions"}


class FastNode:
    """A Function class for one signature's segment, below all transforms.

    Attributes:
        owner: The segment in its keeping form.
        apply: Takes the operands and returns the graph's outputs: one tensor or a tuple.
        trusting: Whether guards compared the operands' layouts. Otherwise they are compared when
            the graph runs.
        single: Whether one output comes as a tensor and not as a tuple.
        backwards: How many layouts of tangents have generated code.
    """

    def __init__(
        self, owner: SegmentFunction, *, trusting: bool = True, single: bool = True
    ) -> None:
        """Generate the class; tangents are learned from the first backward on."""
        self.owner = owner
        self.trusting = trusting
        self.single = single
        self.backwards = 0
        saved = {residual.operand for residual in owner.form.residuals}
        self._edges = tuple(
            index
            for index, operand in enumerate(owner.segment.operands)
            if operand.leaf is not None and index not in saved
        )
        self._branches: list[_Branch] = []
        members = {
            "forward": staticmethod(self._write_forward()),
            "backward": staticmethod(owner.backward),
            "__module__": __name__,
            "__doc__": f"The compiled program {owner.segment.name}, below all transforms.",
        }
        self._function = type(owner.segment.name, (torch.autograd.Function,), members)
        self._write_backward()
        self.apply = autograd.native_apply(self._function)

    def _write_forward(self) -> Callable[..., Any]:
        owner = self.owner
        source = Source()
        made = len(owner.segment.output_nodes)
        operands = [source.name("a") for _ in owner.segment.operands]
        source.line("ctx.set_materialize_grads(False)")
        source.line(
            f"made = {run_expression(source, owner.form, operands, trusting=self.trusting)}"
        )
        constant = [
            f"made[{index}]"
            for index, tensor in enumerate(owner.segment.graph_outputs)
            if not tensor.requires_grad
        ]
        if constant:
            source.line(f"ctx.mark_non_differentiable({listed(constant)})")
        values = [
            operands[residual.operand]
            if residual.operand is not None
            else f"made[{residual.output}]"
            for residual in owner.form.residuals
        ]
        if values:
            source.line(f"ctx.save_for_backward({listed(values)})")
        if self._edges:
            source.line(f"ctx.edges = ({''.join(f'{operands[i]}, ' for i in self._edges)})")
        returned = [f"made[{index}]" for index in range(made)]
        single = made == 1 and self.single
        source.line(f"return {returned[0] if single else listed(returned) + ','}")
        return source.build(f"forward(ctx, {listed(operands)})")

    def _general(self, ctx: Any, *tangents: torch.Tensor | None) -> tuple[Any, ...]:
        """What means the same as the generated branches, for any tangents."""
        if not self._edges:
            ctx.edges = ()
        ctx.edge_indices = self._edges
        gradients = self.owner.backward(ctx, *tangents)
        if not torch.is_grad_enabled():
            self._learn(tangents, ctx.saved_tensors if self.owner.form.residuals else ())
        return gradients

    def _learn(
        self, tangents: Sequence[torch.Tensor | None], saved: Sequence[torch.Tensor]
    ) -> None:
        """Generate a branch for tangents like these, if this is the common case.

        What was saved is compared too: hooks may have given it another layout.
        """
        if len(self._branches) >= config.get().fast_backwards or not config.get().fast_path:
            return
        present = [tangent for tangent in tangents if tangent is not None]
        distinct = list({id(tensor): tensor for tensor in present}.values())
        compared = [*distinct, *saved]
        if not present or not _is_common(present, saved) or not self._are_as_traced(saved):
            return
        needs = tuple(operand.leaf is not None for operand in self.owner.segment.operands)
        found = self.owner.derivatives.backward(needs, self._edges, tangents, saved)
        if not _is_plain(found[0]):
            return
        pattern = tuple(_pattern(tangents))
        specs: tuple[TensorSpec, ...] = ()
        if self.owner.derivatives.sizes is not None:
            specs = self._open_specs(pattern, found[0])
        check = tensor_check(compared, specs) if specs else guards.tensor_check(compared)
        self._branches.append(_Branch(pattern, check, specs, *found))
        self.backwards = len(self._branches)
        self._write_backward()

    def _are_as_traced(self, saved: Sequence[torch.Tensor]) -> bool:
        """Whether what was saved has the layouts that the backward's graph trusts it to have."""
        if self.owner.derivatives.sizes is not None:
            # The generated code compares them with what they are at each call's sizes.
            return True
        layouts = layouts_of([graphs.value_of(kept.node) for kept in self.owner.form.residuals])
        return layouts is not None and all(
            tuple(tensor.shape) == layout.shape and layout.fits(tensor)
            for tensor, layout in zip(saved, layouts, strict=True)
        )

    def _open_specs(
        self, pattern: tuple[int | None, ...], backward: Backward
    ) -> tuple[TensorSpec, ...]:
        """Specs of the distinct tangents and of what was saved, with open sizes."""
        firsts = [index for index, first in enumerate(pattern) if first == index]
        given = [backward.key.tangents[index] for index in firsts]
        kept = [spec_of(graphs.value_of(item.node)) for item in self.owner.form.residuals]
        return tuple(spec for spec in (*given, *kept) if spec is not None)

    def _write_backward(self) -> None:
        source = Source(
            general=self._general,
            grad_enabled=torch.is_grad_enabled,
            keeps_graph=tracing.backward_keeps_graph,
            forward_ad=guards.forward_ad,
        )
        tangents = [source.name("t") for _ in self.owner.segment.output_nodes]
        if self._branches:
            source.line("if grad_enabled() or forward_ad._current_level >= 0:")
            source.line(f"return general(ctx, {listed(tangents)})", 2)
        for branch in self._branches:
            branch.write(source, tangents, self.owner, has_edges=bool(self._edges))
        source.line(f"return general(ctx, {listed(tangents)})")
        apply = source.build(f"apply(ctx, {listed(tangents)})")
        nodes.set_node_apply(self._function, apply)


class _Branch:
    """Generated code for one layout of tangents."""

    def __init__(
        self,
        pattern: tuple[int | None, ...],
        check: Callable[..., bool],
        specs: tuple[TensorSpec, ...],
        backward: Backward,
        functions: SegmentFunctions,
    ) -> None:
        self.pattern = pattern
        self.check = check
        self.specs = specs
        self.backward = backward
        self.functions = functions

    def write(
        self, source: Source, tangents: list[str], owner: SegmentFunction, *, has_edges: bool
    ) -> None:
        """Write ``if <tangents look like those>: return <gradients>``."""
        conditions, distinct, present = [], [], []
        for index, (name, first) in enumerate(zip(tangents, self.pattern, strict=True)):
            if first is None:
                conditions.append(f"{name} is None")
                continue
            present.append(name)
            if first == index:
                distinct.append(name)
            else:
                conditions.append(f"{name} is {tangents[first]}")
        residuals = len(owner.form.residuals)
        saved = [source.name("kept") for _ in range(residuals)]
        indent = 1
        if conditions:
            source.line(f"if {' and '.join(conditions)}:")
            indent = 2
        if saved:
            source.line(unpacked(saved, "ctx.saved_tensors"), indent)
        check = source.constant(self.check, "check")
        source.line(f"if {check}({listed([*distinct, *saved])}):", indent)
        if self.specs:
            indent += 1
            self._write_open_checks(source, [*distinct, *saved], indent)
        if has_edges and saved:
            source.line("if not keeps_graph(): ctx.edges = ()", indent + 1)
        operands = [*saved, *present]
        form = self.functions.plain.form
        source.line(f"made = {run_expression(source, form, operands)}", indent + 1)
        source.line(f"return {self._gradients(operands)}", indent + 1)

    def _write_open_checks(self, source: Source, names: list[str], indent: int) -> None:
        """Compare open sizes and what follows from them."""
        form = self.functions.plain.form
        symbols = () if form.program.sizes is None else form.program.sizes.environment.symbols
        checks = OpenChecks.of(
            symbols,
            list(zip(names, self.specs, strict=True)),
            (self.backward.conditions, form.program.assumed),
        )
        checks.write(source, indent)
        source.line(f"if {checks}:", indent)

    def _gradients(self, operands: list[str]) -> str:
        segment = self.backward.segment
        if segment is None:
            raise RuntimeError("a branch without a program")
        parts = []
        for target in self.backward.targets:
            if target is None:
                parts.append("None")
                continue
            place = segment.places[target]
            parts.append(
                f"made[{place.output}]"
                if place.output is not None
                else operands[place.operand or 0]
            )
        return f"({''.join(f'{part}, ' for part in parts)})"


def _pattern(tangents: Sequence[torch.Tensor | None]) -> list[int | None]:
    """For each tangent the position of the first that is the same object; None for None."""
    first: dict[int, int] = {}
    return [
        None if tangent is None else first.setdefault(id(tangent), index)
        for index, tangent in enumerate(tangents)
    ]


def _is_common(tangents: Sequence[torch.Tensor], saved: Sequence[torch.Tensor]) -> bool:
    return (
        all(type(tangent) is torch.Tensor and not tangent.requires_grad for tangent in tangents)
        and all(tensor.layout is torch.strided for tensor in [*tangents, *saved])
        and len({id(tensor) for tensor in [*tangents, *saved]})
        == len({*map(id, tangents)}) + len(saved)
        and not functorch.transforms_active()
        and not functorch.has_legacy_batched(tangents)
        and not functorch.dispatch_mode_count()
        and not guards.any_autocast_enabled()
        and not autograd.in_dual_level()
    )


def _is_plain(backward: Backward) -> bool:
    """Whether running the graph and handing out its outputs is all there is to a backward."""
    extra = [
        getattr(backward, item.name)
        for item in dataclasses.fields(backward)
        if item.name not in _PLAIN_BACKWARD
    ]
    return (
        backward.segment is not None
        and not any(extra)
        and any(target is not None for target in backward.targets)
    )
