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
from funcaot._torch.autograd import autograd, nodes
from funcaot._torch.dynamo.dynamo import hidden_from_dynamo
from funcaot._torch.levels import functorch
from funcaot._torch.tensors import guards
from funcaot._torch.tracing import tracing
from funcaot.aot.calls.call import SegmentFunction
from funcaot.aot.graph.source import Source, listed
from funcaot.aot.graph.tensor_spec import TensorSpec
from funcaot.aot.runtime.generated.fast_branch import BranchWriter, Case, pattern_of
from funcaot.aot.runtime.generated.fast_run import run_expression
from funcaot.aot.segment.backward import Backward
from funcaot.aot.signature.open_checks import tensor_check

_PLAIN_BACKWARD = {"key", "segment", "targets", "timings", "conditions", "read"}


class FastNode:
    """A Function class for one signature's segment, below all transforms.

    Attributes:
        owner: The segment in its keeping form.
        apply: Takes the operands and returns the graph's outputs: one tensor or a tuple.
        trusting: Whether guards compared the operands' layouts. Otherwise they are compared when
            the graph runs.
        returns_one: Whether ``apply`` returns a tensor and no tuple.
        assumed: What the executable that it runs takes for granted about open sizes.
    """

    def __init__(
        self, owner: SegmentFunction, *, trusting: bool = True, single: bool = True
    ) -> None:
        """Generate the class; tangents are learned from the first backward on.

        Args:
            owner: See the class.
            trusting: See the class.
            single: Whether one output comes as a tensor and not as a tuple.
        """
        self.owner = owner
        self.trusting = trusting
        self.returns_one = single and len(owner.segment.output_nodes) == 1
        saved = {residual.operand for residual in owner.form.residuals}
        self._edges = tuple(
            index
            for index, operand in enumerate(owner.segment.operands)
            if operand.leaf is not None and index not in saved
        )
        self._cases: dict[bool, list[Case]] = {False: [], True: []}
        members = {
            "forward": staticmethod(self._write_forward()),
            "backward": staticmethod(owner.backward),
            "complete": staticmethod(self._complete),
            "__module__": __name__,
            "__doc__": f"The compiled program {owner.segment.name}, below all transforms.",
        }
        self.assumed = owner.program.assumed
        self._function = type(owner.segment.name, (torch.autograd.Function,), members)
        self._write_backward()
        self.apply = autograd.native_apply(self._function)

    @property
    def backwards(self) -> int:
        """How many kinds of backwards have generated code."""
        return sum(map(len, self._cases.values()))

    def _write_forward(self) -> Callable[..., Any]:
        owner = self.owner
        source = Source()
        made = len(owner.segment.output_nodes)
        operands = [source.name("a") for _ in owner.segment.operands]
        source.line("ctx.set_materialize_grads(False)")
        source.line(f"made = {run_expression(source, owner, operands, trusting=self.trusting)}")
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
        source.line(f"return {returned[0] if self.returns_one else listed(returned) + ','}")
        return source.build(f"forward(ctx, {listed(operands)})")

    def _complete(self, ctx: Any) -> None:
        """Give a node what the general path asks of it."""
        if not self._edges:
            ctx.edges = ()
        ctx.edge_indices = self._edges

    def _general(
        self, ctx: Any, saved: tuple[torch.Tensor, ...], *tangents: torch.Tensor | None
    ) -> tuple[Any, ...]:
        """What means the same as the generated branches, for any tangents."""
        self._complete(ctx)
        gradients = self.owner.backward_of(ctx, saved, tangents)
        if not hasattr(ctx, "left"):
            self._learn(ctx, saved, tangents)
        return gradients

    def _learn(
        self,
        ctx: Any,
        saved: tuple[torch.Tensor, ...],
        tangents: Sequence[torch.Tensor | None],
    ) -> None:
        """Generate a case for a backward like this one, if it is a common one.

        What was saved is compared too: hooks may have given it another layout.
        """
        create_graph = torch.is_grad_enabled()
        cases = self._cases[create_graph]
        needs = getattr(ctx, "needs", None)
        present = [tangent for tangent in tangents if tangent is not None]
        full = len(cases) >= config.get().fast_backwards or not config.get().fast_path
        if full or needs is None or not present:
            return
        if not _is_common(present, saved):
            return
        backward, functions = self.owner.derivatives.backward(needs, self._edges, tangents, saved)
        if not _is_plain(backward):
            return
        runs = functions.keeping if create_graph else functions.plain
        if not self._fits(saved, runs) or (create_graph and runs.unchecked):
            return
        pattern = pattern_of(tangents)
        distinct = list({id(tensor): tensor for tensor in present}.values())
        compared = [*distinct, *saved]
        specs: tuple[TensorSpec, ...] = ()
        if self.owner.derivatives.sizes is not None:
            specs = self._open_specs(pattern, backward)
        check = tensor_check(compared, specs) if specs else guards.tensor_check(compared)
        everything = tuple(operand.leaf is not None for operand in self.owner.segment.operands)
        wanted = None if needs == everything else needs
        case = Case(pattern, wanted, check, specs, backward, functions)
        if create_graph and case.runs:
            if not functions.keeping.segment.output_nodes:
                return
            case = dataclasses.replace(case, following=FastNode(functions.keeping))
        cases.append(case)
        self._write_backward()

    def _fits(self, saved: Sequence[torch.Tensor], runs: SegmentFunction) -> bool:
        """Whether what was saved has the layouts that the backward's graph trusts it to have."""
        if self.owner.derivatives.sizes is not None:
            # The generated code compares them with what they are at each call's sizes.
            return True
        given = {
            place: saved[at] for place, at in enumerate(runs.form.positions) if at < len(saved)
        }
        return runs.program.fits(given)

    def _open_specs(
        self, pattern: tuple[int | None, ...], backward: Backward
    ) -> tuple[TensorSpec, ...]:
        """Specs of the distinct tangents and of what was saved, with open sizes."""
        firsts = [index for index, first in enumerate(pattern) if first == index]
        given = [backward.key.tangents[index] for index in firsts]
        sizes = self.owner.derivatives.sizes
        kept = () if sizes is None else sizes.kept
        return tuple(spec for spec in (*given, *kept) if spec is not None)

    def _write_backward(self) -> None:
        source = Source(
            general=self._general,
            grad_enabled=torch.is_grad_enabled,
            keeps_graph=tracing.backward_keeps_graph,
            forward_ad=guards.forward_ad,
        )
        tangents = [source.name("t") for _ in self.owner.segment.output_nodes]
        general = f"return general(ctx, saved, {listed(tangents)})"
        writer = BranchWriter(source, self.owner, tangents, self._edges)
        writer.write_saved()
        source.line(f"if forward_ad._current_level >= 0: {general}")
        if any(self.owner.segment.links):
            source.line(f"if hasattr(ctx, 'left') or hasattr(ctx, 'rest'): {general}")
        source.line("if grad_enabled():")
        self._write_cases(writer, 2, create_graph=True)
        source.line(general, 2)
        self._write_cases(writer, 1, create_graph=False)
        source.line(general)
        apply = source.build(f"apply(ctx, {listed(tangents)})")
        nodes.set_node_apply(self._function, hidden_from_dynamo(apply))

    def _write_cases(self, writer: BranchWriter, indent: int, *, create_graph: bool) -> None:
        cases = self._cases[create_graph]
        if not cases:
            return
        needs = writer.source.constant(self.owner.engine_needs[create_graph].of, "wanted")
        writer.source.line(f"needs = {needs}(ctx)", indent)
        for case in cases:
            writer.write(case, indent)


def _is_common(tangents: Sequence[torch.Tensor], saved: Sequence[torch.Tensor]) -> bool:
    return (
        all(type(tangent) is torch.Tensor for tangent in tangents)
        and (torch.is_grad_enabled() or not any(tangent.requires_grad for tangent in tangents))
        and all(tensor.layout is torch.strided for tensor in [*tangents, *saved])
        and not any(map(autograd.is_zero_tensor, [*tangents, *saved]))
        and len({id(tensor) for tensor in [*tangents, *saved]})
        == len({*map(id, tangents)}) + len(saved)
        and not functorch.under_transforms(tangents)
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
