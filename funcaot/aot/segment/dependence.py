"""Which results of a segment depend on operands and on each other; calls and ``forward`` ask.

On the tape every operand that some level differentiates is a leaf. Each level wants the gradients
of some of them only, and what depends on the others alone is a constant there, as in eager.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch

from funcaot._torch.autograd.nodes import dependents, has_grad_fn, leaves_behind
from funcaot._torch.tracing import tracing
from funcaot.aot.capture.capture import Capture
from funcaot.aot.effects.effects import Effects
from funcaot.aot.segment.segment import Link, Links, Operand, Segment, Shown

__all__ = ["dependent_on", "links_of", "shown_of"]


def dependent_on(operands: Sequence[Operand], output: torch.Tensor) -> frozenset[int]:
    """Positions of the operands with a gradient on which a result depends.

    What can't be told is taken for dependent.
    """
    leaves = {i: operand.leaf for i, operand in enumerate(operands) if operand.leaf is not None}
    if not output.requires_grad:
        return frozenset()
    if output.grad_fn is None:
        return frozenset(leaves)
    reached = set(map(id, leaves_behind([output])))
    found = frozenset(
        index for index, leaf in leaves.items() if not leaf.is_leaf or id(leaf) in reached
    )
    # A view that is made in no_grad requires grad as its base does, and leads nowhere.
    return found or frozenset(leaves)


def shown_of(segment: Segment, capture: Capture, effects: Effects) -> tuple[Shown, ...]:
    """The tensors that the caller gets of a segment on which others of its results depend."""
    at = {i: place.output for i, place in enumerate(segment.places)}
    none: frozenset[int] = frozenset()
    seen: list[Shown] = []
    for index, (value, output) in enumerate(zip(capture.outputs, effects.outputs, strict=True)):
        own = at[output.result] if output.is_result and output.result is not None else None
        seen.append(Shown(value, none, own, index))
    for mutation in effects.mutations:
        if len(mutation.results) < 2:
            tensor = capture.slots[mutation.index].tensor
            own = at[mutation.results[0]] if mutation.results else None
            seen.append(Shown(tensor, none, own, None, mutation.index))
    with capture.tape.recording(), tracing.without_torch_function():
        tensors = [each for each in seen if isinstance(each.tensor, torch.Tensor)]
        seen = [each for each in tensors if has_grad_fn(each.tensor)]
        found = dependents([each.tensor for each in seen], segment.graph_outputs)
    shown = [each._replace(by=by - {each.own}) for each, by in zip(seen, found, strict=True)]
    return tuple(each for each in shown if each.by)


def links_of(segment: Segment, effects: Effects) -> Links:
    """The outputs of a segment's graph that depend on what is ``shown`` of it."""
    if segment.tape.wrappers.used:
        return Links()
    direct = {
        at
        for at, each in enumerate(segment.shown)
        if each.own is not None
        and each.output is not None
        and effects.outputs[each.output].of_class is None
    }
    found: tuple[list[Link], list[Link], list[Link]] = [], [], []
    for output in range(len(segment.graph_outputs)):
        on = tuple(at for at, each in enumerate(segment.shown) if output in each.by)
        if not on:
            continue
        places = tuple(i for i, place in enumerate(segment.places) if place.output == output)
        returned = _returned_as(effects, places)
        if direct.issuperset(on):
            found[0].append(Link(output, on, places))
        elif returned:
            found[1].append(Link(output, on, returned))
        else:
            found[2].append(Link(output, on, ()))
    # What depends on a result depends on all that the result depends on.
    ordered = (sorted(links, key=lambda link: len(link.on)) for links in found)
    return Links(*map(tuple, ordered))


def _returned_as(effects: Effects, places: tuple[int, ...]) -> tuple[int, ...]:
    """Which outputs of the function a result is, if nothing else is made of it."""
    found = {i: output for i, output in enumerate(effects.outputs) if output.result in places}
    written = {result for mutation in effects.mutations for result in mutation.results}
    is_made_of = any(output.origin is not None for output in effects.outputs)
    changed = {index for index, _ in effects.attached}
    if is_made_of or not written.isdisjoint(places) or not changed.isdisjoint(found):
        return ()
    plain = all(output.is_result and output.of_class is None for output in found.values())
    return tuple(found) if plain else ()
