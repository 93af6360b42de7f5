"""Which results of a segment depend on operands and on each other; calls and ``forward`` ask.

On the tape every operand that some level differentiates is a leaf. Each level wants the gradients
of some of them only, and what depends on the others alone is a constant there, as in eager.
"""

from __future__ import annotations

import functools
import operator
from collections.abc import Sequence

import torch

from funcaot._torch.autograd.nodes import has_grad_fn, leaves_behind, met_first
from funcaot._torch.tracing import tracing
from funcaot.aot.capture.capture import Capture
from funcaot.aot.effects.effects import Effects
from funcaot.aot.segment.segment import Link, Links, Operand, Segment, Shown

__all__ = ["dependent_on", "find_links"]


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


def find_links(segment: Segment, capture: Capture, effects: Effects) -> None:
    """Tell a segment what the caller gets of it, and which outputs of its graph depend on that."""
    seen = _seen(segment, capture, effects)
    if segment.tape.wrappers.used or len(seen) < 2:
        return
    with capture.tape.recording(), tracing.without_torch_function():
        shown = tuple(each for each in seen if has_grad_fn(each.tensor))
        outputs = {i: each for i, each in enumerate(segment.graph_outputs) if has_grad_fn(each)}
        ends = [each.tensor for each in shown]
        met = met_first([*outputs.values(), *ends], ends)
    on = {output: each for output, each in zip(outputs, met, strict=False) if each}
    if on:
        segment.shown = shown
        segment.links = _links(segment, effects, on, _with_behind(met[len(outputs) :]))


def _seen(segment: Segment, capture: Capture, effects: Effects) -> list[Shown]:
    """What the caller gets that is a tensor."""
    at = {i: place.output for i, place in enumerate(segment.places)}
    seen: list[Shown] = []
    for index, (value, output) in enumerate(zip(capture.outputs, effects.outputs, strict=True)):
        if isinstance(value, torch.Tensor):
            own = at[output.result] if output.is_result and output.result is not None else None
            seen.append(Shown(value, own, index))
    for mutation in effects.mutations:
        if len(mutation.results) < 2:
            tensor = capture.slots[mutation.index].tensor
            own = at[mutation.results[0]] if mutation.results else None
            seen.append(Shown(tensor, own, None, mutation.index))
    return seen


def _with_behind(met: Sequence[frozenset[int]]) -> list[int]:
    """For each tensor itself and all behind it as bits, from what is met first."""
    found: dict[int, int] = {}
    pending = list(range(len(met)))
    while pending:
        index = pending[-1]
        unknown = [other for other in met[index] if other not in found]
        if unknown:
            pending += unknown
            continue
        pending.pop()
        found[index] = 1 << index
        for other in met[index]:
            found[index] |= found[other]
    return [found[index] for index in range(len(met))]


def _links(
    segment: Segment, effects: Effects, on: dict[int, frozenset[int]], behind: Sequence[int]
) -> Links:
    others = 0
    for at, each in enumerate(segment.shown):
        is_plain = each.own is not None and each.output is not None
        if not is_plain or effects.outputs[each.output or 0].of_class is not None:
            others |= 1 << at
    found: tuple[list[Link], list[Link], list[Link]] = [], [], []
    for output, met in on.items():
        links = tuple(behind[at] for at in sorted(met))
        places = tuple(i for i, place in enumerate(segment.places) if place.output == output)
        returned = _returned_as(effects, places)
        if not any(each & others for each in links):
            found[0].append(Link(output, tuple(sorted(met)), links, places))
        elif returned:
            found[1].append(Link(output, tuple(sorted(met)), links, returned))
        else:
            found[2].append(Link(output, tuple(sorted(met)), links, ()))
    # What depends on a result depends on all that the result depends on.
    ordered = (sorted(links, key=_count) for links in found)
    return Links(*map(tuple, ordered))


def _count(link: Link) -> int:
    return functools.reduce(operator.or_, link.behind).bit_count()


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
