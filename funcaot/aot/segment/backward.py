"""Tracing a backward when it is invoked: the tape continues with the real tangents."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, NamedTuple

import torch
from torch import fx

from funcaot._torch.autograd import autograd
from funcaot._torch.tracing import tracing
from funcaot.aot.graph import graphs
from funcaot.aot.graph.graph_checks import Roles
from funcaot.aot.graph.tensor_spec import TensorSpec, spec_of
from funcaot.aot.lowering.executable_cache import TANGENT
from funcaot.aot.segment.backward_effects import BackwardMutation, Snapshot, Write
from funcaot.aot.segment.segment import Form, Operand, Segment
from funcaot.aot.signature.sizes import Conditions
from funcaot.aot.tape.frontier import autograd_nodes
from funcaot.aot.tape.masks import use_kept_masks
from funcaot.aot.tape.writes import RefuseOverlap


class BackwardKey(NamedTuple):
    """What a backward is specialized on.

    Attributes:
        needs: Which operands need a gradient.
        tangents: Spec of each output's tangent, None where there is none.
        create_graph: Whether the backward will itself be differentiated.
        edges: Operands of the forward that are passed on only for their autograd edge.
        autocast: Device types that autocast while the backward runs, which its ops see as in eager.
        asked_by: Whether levels or dual numbers ask for it, if Functions may tell.
        variant: Counts backwards that differ in what they assume about open sizes.
    """

    needs: tuple[bool, ...]
    tangents: tuple[TensorSpec | None, ...]
    create_graph: bool
    edges: tuple[int, ...]
    autocast: tuple[Any, ...] = ()
    asked_by: str = ""
    variant: int = 0


@dataclass(eq=False)
class Backward:
    """A traced backward.

    Attributes:
        key: What it is specialized on.
        segment: From residuals, tangents and edges to gradients; None if there are none.
        targets: For each operand of the forward, which of the segment's outputs is its
            gradient, or None.
        mutations: What it overwrites besides.
        premises: Nodes that leave it if values aren't what it was traced for.
        timings: Seconds per stage.
        conditions: What it assumes about open sizes, if there are any.
        read: Whether what user's rules read is as it was, if they ran.
    """

    key: BackwardKey
    segment: Segment | None
    targets: tuple[int | None, ...]
    mutations: tuple[BackwardMutation, ...] = ()
    premises: tuple[fx.Node, ...] = ()
    timings: dict[str, float] = field(default_factory=dict)
    conditions: Conditions | None = None
    read: Callable[[], bool] | None = None

    @cached_property
    def reads(self) -> frozenset[fx.Node]:
        """Nodes in whose memory the values live that the backward reads or computes again.

        What was kept in place of a value, as booleans, stands for it.
        """
        if self.segment is None:
            return frozenset()
        given = {operand.node for operand in self.segment.operands}
        needed = graphs.closure(self.segment.output_nodes, given)
        used = {source for node in needed for source in node.all_input_nodes}
        read = used | (given & {*self.segment.output_nodes})
        read |= {node.meta["mask_of"] for node in read if "mask_of" in node.meta}
        return frozenset(map(graphs.view_root, read))

    def distribute(self, gradients: Sequence[Any]) -> tuple[Any, ...]:
        """One gradient per operand of the forward, None where autograd gives none."""
        return tuple(None if target is None else gradients[target] for target in self.targets)


class _Found(NamedTuple):
    """What a trace found: gradients by operand, writes, and premises."""

    gradients: dict[int, torch.Tensor | None]
    writes: tuple[Write, ...]
    premises: tuple[fx.Node, ...]


def tangent_specs(tangents: Sequence[torch.Tensor | None]) -> tuple[TensorSpec | None, ...]:
    """Specs as leaves; one requires grad where a derivative of the derivative may flow through it.

    A gradient of a gradient that nobody can ask for isn't recorded, and what the backward returns
    requires grad exactly where it does in eager.
    """
    create_graph = autograd.gradients_are_differentiated()
    forward_mode = create_graph and tracing.forward_mode_active()
    specs: list[TensorSpec | None] = []
    for tangent in tangents:
        if tangent is None:
            specs.append(None)
            continue
        spec = spec_of(tangent, forward_mode=forward_mode)
        wanted = spec.requires_grad and create_graph
        specs.append(spec.with_grad() if wanted else spec.without_grad())
    return tuple(specs)


def trace_backward(
    segment: Segment,
    form: Form,
    key: BackwardKey,
    tangents: Sequence[torch.Tensor | None],
    values: Sequence[torch.Tensor],
) -> Backward:
    """Continue the tape by the backward of a segment.

    Args:
        segment: The forward.
        form: How the forward ran, so what it kept.
        key: Needs and specs of the tangents.
        tangents: The tangents themselves, for layouts that specs don't describe and for opaque
            Functions that the backward calls.
        values: What the forward kept; none if it hasn't run.

    Raises:
        UnsupportedError: If the backward changes more than data of inputs and tangents.
        RuntimeError: If a Function on the way is ``once_differentiable`` and this is the second.
        Exception: Whatever a user's backward raises, unchanged.
    """
    for residual, value in zip(form.residuals, values, strict=bool(values)):
        segment.tape.provide(residual.node, value)
    inputs, outputs, placeholders = [], [], []
    for index, (spec, tangent) in enumerate(zip(key.tangents, tangents, strict=True)):
        if spec is None:
            continue
        placeholder = segment.tape.placeholder(f"tangent_{index}", spec, tangent)
        placeholders.append(placeholder)
        if segment.graph_outputs[index].requires_grad:
            outputs.append(segment.graph_outputs[index])
            inputs.append(placeholder)
    wanted = [index for index, needed in enumerate(key.needs) if needed]
    leaves = [segment.operands[index].leaf for index in wanted]
    if not outputs or not leaves:
        return Backward(key, None, (None,) * len(key.needs))
    _refuse_once_differentiable(outputs)
    nodes = [segment.tape.node_of(tensor) for tensor in placeholders]
    for node in nodes:
        if node is not None:
            node.meta[TANGENT] = True
    snapshot = Snapshot(segment, placeholders)
    last = next(iter(reversed(segment.tape.graph.nodes)))
    with RefuseOverlap():
        gradients = segment.tape.gradients(
            outputs,
            leaves,  # type: ignore[arg-type]
            inputs,
            create_graph=key.create_graph,
        )
    writes = snapshot.changes()
    use_kept_masks(segment.tape.graph, last, [residual.node for residual in form.residuals])
    pulled = dict(zip(wanted, gradients, strict=True))
    found = _Found(pulled, writes, graphs.premises_after(last))
    return _assemble(segment, form, key, placeholders, found)


def _refuse_once_differentiable(outputs: Sequence[torch.Tensor]) -> None:
    """Raise eager's error where a second derivative meets ``once_differentiable``.

    The node that raises in eager hangs off no input, so asking for the inputs' gradients alone
    would silently find none.
    """
    if any(node.name().endswith("Error") for node in autograd_nodes(outputs)):
        raise RuntimeError(
            "trying to differentiate twice a function that was marked with @once_differentiable"
        )


def _assemble(
    segment: Segment,
    form: Form,
    key: BackwardKey,
    tangents: Sequence[torch.Tensor],
    found: _Found,
) -> Backward:
    """Make the record of a traced backward from its gradients and what it wrote to."""
    gradients, writes = found.gradients, found.writes
    present = {index: gradient for index, gradient in gradients.items() if gradient is not None}
    if not present and not writes:
        return Backward(key, None, (None,) * len(key.needs))
    targets: list[int | None] = [None] * len(key.needs)
    for position, index in enumerate(present):
        targets[index] = position
    made = len(segment.output_nodes)
    operands = [
        Operand(
            residual.node,
            None if residual.operand is None else segment.operands[residual.operand].leaf,
            private=residual.operand is None and (residual.output or 0) >= made,
        )
        for residual in form.residuals
    ]
    operands += [
        Operand(segment.node_of(tensor), tensor if tensor.requires_grad else None)
        for tensor in tangents
    ]
    operands += [
        Operand(segment.operands[index].node, segment.operands[index].leaf, by_value=False)
        for index in key.edges
    ]
    # Their data when the backward runs, not when the forward did.
    operands += [Operand(write.before) for write in writes if write.operand is not None]
    following = Segment(
        segment.tape,
        tuple(operands),
        (*present.values(), *(write.value for write in writes)),
        segment.settings,
        f"{segment.name}_backward" if segment.order == 0 else f"{segment.name}_again",
        order=segment.order + 1,
        kind="backward",
        start=min(segment.node_of(tensor) for tensor in tangents),
        effect_nodes=found.premises,
        drawn=segment.drawn_after,
        executables=segment.backward_executables,
        roles=Roles(copied=frozenset(range(len(present), len(present) + len(writes)))),
    )
    mutations = tuple(
        BackwardMutation(
            write.operand,
            write.tangent,
            len(present) + position,
            write.versions,
            write.name,
            write.requires_grad,
        )
        for position, write in enumerate(writes)
    )
    return Backward(key, following, tuple(targets), mutations, found.premises)
