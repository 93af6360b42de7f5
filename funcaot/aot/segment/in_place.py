"""Writing new values of inputs inside the graph, where nobody can tell it from the epilogue.

The functional graph returns what an input becomes, and the epilogue copies it there. For a training
step that is a copy of every parameter and of the optimizer's state. Below all transforms, with
nothing recorded and nothing shared, the graph's last ops may be the copies themselves, so that a
compiler computes each new value where it belongs.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import torch
from torch import fx

from funcaot.aot.capture.capture import Capture
from funcaot.aot.effects.actions.overwrite import Overwrite
from funcaot.aot.effects.effects import Effects, Mutation
from funcaot.aot.graph import graphs
from funcaot.aot.lowering.lower import Writes, decomposed
from funcaot.aot.segment.in_place_proof import provable
from funcaot.aot.segment.segment import Form, Segment
from funcaot.aot.signature.sizes import Sizes

aten = torch.ops.aten


@dataclass(frozen=True, eq=False)
class InPlacePlan:
    """Which inputs the graph of a plain form may write to.

    Attributes:
        form: The form.
        writes: What goes where, by positions among the graph's inputs and outputs.
        written: Inputs that are written to.
        versions: How many in-place changes each of them counts.
        others: The inputs that share no memory with those.
        effects: What is left to the epilogue.
        count: How many outputs the functional graph has.
    """

    form: Form
    writes: Writes
    written: tuple[int, ...]
    versions: tuple[int, ...]
    others: tuple[int, ...]
    effects: Effects
    count: int


def plan_in_place(
    captured: Capture, effects: Effects, segment: Segment, sizes: Sizes | None = None
) -> InPlacePlan | None:
    """Let the graph write what it can; None if there is nothing, or if the epilogue has to.

    Args:
        captured: What the function did.
        effects: The epilogue's plan.
        segment: The program.
        sizes: What it leaves open.
    """
    if not (
        sizes is None
        and not segment.is_differentiable
        and effects.mutations
        and all(map(_is_simple, effects.mutations))
        and _runs_to_its_end(captured)
        and segment.settings.compiler.writes_inputs
        and not captured.regions
        and not captured.tape.wrappers.used  # Who writes to what is inside of them isn't known.
        and not captured.events.placed
        and not any(output.origin is not None for output in effects.outputs)
        and all(entry.spec.layout is torch.strided for entry in captured.inputs)
    ):
        return None
    form = segment.form(keeping=False)
    if any(graphs.is_opaque(node) for node in form.graph.module.graph.nodes):
        return None
    chosen, writes = _choose(effects, segment, form)
    if writes is None or not chosen:
        return None
    written = tuple(mutation.index for mutation in chosen)
    left = tuple(mutation for mutation in effects.mutations if mutation not in chosen)
    return InPlacePlan(
        form,
        writes,
        written,
        tuple(mutation.versions or 0 for mutation in chosen),
        tuple(index for index in range(len(captured.inputs)) if index not in written),
        replace(effects, mutations=left),
        len(segment.output_nodes),
    )


def _runs_to_its_end(captured: Capture) -> bool:
    """Whether no call leaves the graph half way: by a premise, after which another one runs."""
    if any(map(graphs.keeps_values, captured.tape.graph.nodes)):
        return False
    return all(map(graphs.is_random, captured.effect_nodes))


def _is_simple(mutation: Mutation) -> bool:
    """Whether an input gets new data, counts that, and that's all."""
    only = mutation.actions[0] if len(mutation.actions) == 1 else None
    return isinstance(only, Overwrite) and only.by == "itself"


def _choose(effects: Effects, segment: Segment, form: Form) -> tuple[list[Mutation], Writes | None]:
    """Which mutations the graph does: those with new values that nobody gets to see besides."""
    places, nodes = segment.places, segment.output_nodes
    shown = {
        places[output.result].output for output in effects.outputs if output.result is not None
    }
    uses = [places[mutation.results[0]].output for mutation in effects.mutations]
    roots = [graphs.view_root(node) for node in nodes]
    seen = [roots[index] for index in range(len(roots)) if index in shown or index not in uses]
    overwritten = {segment.operands[mutation.index].node for mutation in effects.mutations}
    chosen: dict[int, Mutation] = {}
    for mutation, output in zip(effects.mutations, uses, strict=True):
        if (
            output is not None
            and roots.count(roots[output]) == 1
            and roots[output] not in seen
            # A compiler that leaves out the copy would read what is there by then.
            and _copied_from(nodes[output]) not in overwritten
            and uses.count(output) == 1
            and _same_shape(segment, mutation.index, output)
        ):
            chosen[output] = mutation
    return _proved(_without_returned(chosen, segment), segment, form)


def _proved(
    chosen: dict[int, Mutation], segment: Segment, form: Form
) -> tuple[list[Mutation], Writes | None]:
    """Those mutations that the compiler can't make wrong, and the graph that it gets."""
    if not chosen:
        return [], None
    compiler = segment.settings.compiler
    module = decomposed(form.graph.module, compiler)
    where = {output: form.positions.index(item.index) for output, item in chosen.items()}
    others = [index for index in range(len(segment.output_nodes)) if index not in chosen]
    pairs = tuple((position, output) for output, position in where.items())
    if compiler.compiles:
        pairs = provable(module, pairs, others)
    written = [output for _, output in pairs]
    kept = tuple(index for index in range(len(segment.output_nodes)) if index not in written)
    return [chosen[output] for output in written], Writes(pairs, kept, module)


def _without_returned(chosen: dict[int, Mutation], segment: Segment) -> dict[int, Mutation]:
    """Leave out inputs in whose memory something may lie that the graph returns."""
    nodes = segment.output_nodes
    while True:
        returned = {
            _copied_from(node, clones=False)
            for index, node in enumerate(nodes)
            if index not in chosen
        }
        safe = {
            output: mutation
            for output, mutation in chosen.items()
            if segment.operands[mutation.index].node not in returned
        }
        if len(safe) == len(chosen):
            return safe
        chosen = safe


def _same_shape(segment: Segment, operand: int, output: int) -> bool:
    target = graphs.value_of(segment.operands[operand].node)
    value = graphs.value_of(segment.output_nodes[output])
    return target.shape == value.shape and target.dtype == value.dtype


def _copied_from(node: fx.Node, *, clones: bool = True) -> fx.Node:
    """The node whose elements this one's are, unchanged.

    Args:
        node: The node.
        clones: Whether to look behind a clone too, which every compiler makes.
    """
    while True:
        source = graphs.view_source(node)
        if source is None and node.target is aten.copy.default:
            source = node.args[1]
        if source is None and clones and node.target is aten.clone.default:
            source = node.args[0]
        if not isinstance(source, fx.Node):
            return node
        node = source
