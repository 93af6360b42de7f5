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
from funcaot.aot.graph import graphs
from funcaot.aot.segment.segment import Link, Links, Operand, Segment, Shown

__all__ = ["dependent_on", "find_links", "find_links_of_derivative"]


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
    if segment.tape.wrappers.used or not seen:
        return
    with capture.tape.recording(), tracing.without_torch_function():
        segment.shown = tuple(each for each in seen if has_grad_fn(each.tensor))
        if not segment.shown:
            return
        if len(seen) > 1:
            on, behind = _met(segment)
            segment.links = _links(segment, effects, on, behind)
            ranked = sorted(range(len(behind)), key=lambda at: behind[at].bit_count())
            inputs = [at for at in ranked if segment.shown[at].output is None]
            segment.turns = tuple(segment.shown[at].input for at in inputs)
        segment.noted = _noted(segment)


def find_links_of_derivative(segment: Segment, before: Segment) -> None:
    """The same for a derivative, which may depend on what the caller has of the calls before.

    Some of that may be gone when it runs. So its links name all of it, not what comes first.
    """
    if segment.tape.wrappers.used or not (before.shown or len(segment.graph_outputs) > 1):
        return
    with segment.tape.recording(), tracing.without_torch_function():
        inherited = [Shown(each.tensor, None, None) for each in before.shown]
        outputs = enumerate(segment.graph_outputs)
        own = [Shown(each, index, None) for index, each in outputs if has_grad_fn(each)]
        segment.shown = (*inherited, *own)
        on, behind = _met(segment)
        found = []
        for output, met in on.items():
            bits = functools.reduce(operator.or_, (behind[at] for at in met))
            every = tuple(at for at in range(len(segment.shown)) if bits >> at & 1)
            places = tuple(i for i, place in enumerate(segment.places) if place.output == output)
            found.append(Link(output, every, tuple(behind[at] for at in every), places))
        segment.links = Links(tuple(sorted(found, key=_count)))
        segment.noted = _noted(segment)


def _met(segment: Segment) -> tuple[dict[int, frozenset[int]], list[int]]:
    """What each output of the graph meets first of what is shown; and that with all behind it."""
    outputs = {i: each for i, each in enumerate(segment.graph_outputs) if has_grad_fn(each)}
    ends = [each.tensor for each in segment.shown]
    met = met_first([*outputs.values(), *ends], ends)
    on = {output: each for output, each in zip(outputs, met, strict=False) if each}
    return on, _with_behind(met[len(outputs) :])


def _noted(segment: Segment) -> tuple[int, ...]:
    """What somebody may look at behind a link, and what is behind some value that is saved."""
    nodes = [segment.tape.node_of(each.tensor) for each in segment.shown]
    saved = graphs.closure([demand.node for demand in segment.demands], ())
    behind = [bits for links in segment.links[1:] for link in links for bits in link.behind]
    linked = functools.reduce(operator.or_, behind, 0)
    return tuple(at for at, node in enumerate(nodes) if node in saved or linked >> at & 1)


def _seen(segment: Segment, capture: Capture, effects: Effects) -> list[Shown]:
    """What the caller gets that is a tensor."""
    at = {i: place.output for i, place in enumerate(segment.places)}
    seen: list[Shown] = []
    for index, (value, output) in enumerate(zip(capture.outputs, effects.outputs, strict=True)):
        if isinstance(value, torch.Tensor) and output.is_input:
            seen.append(Shown(value, None, None, output.source or 0))
        elif isinstance(value, torch.Tensor):
            plain = output.is_result and output.of_class is None
            own = at[output.result] if plain and output.result is not None else None
            seen.append(Shown(value, own, index))
    returned = {each.input for each in seen if each.output is None}
    for mutation in effects.mutations:
        if mutation.index not in returned:
            tensor, results = capture.slots[mutation.index].tensor, mutation.results
            own = at[results[0]] if len(results) == 1 else None
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
    others = made = 0
    simple = _changes_each(effects)
    for at, each in enumerate(segment.shown):
        output = None if each.output is None else effects.outputs[each.output]
        if simple and (output is None or output.is_another_look):
            made |= 1 << at
        elif each.own is None or output is None:
            others |= 1 << at
    found: tuple[list[Link], ...] = [], [], [], []
    for output, met in on.items():
        links = tuple(behind[at] for at in sorted(met))
        places = tuple(i for i, place in enumerate(segment.places) if place.output == output)
        returned = _returned_as(effects, places)
        if not any(each & (others | made) for each in links):
            found[0].append(Link(output, tuple(sorted(met)), links, places))
        elif not any(each & others for each in links):
            found[1].append(Link(output, tuple(sorted(met)), links, places))
        elif returned:
            found[2].append(Link(output, tuple(sorted(met)), links, returned))
        else:
            found[3].append(Link(output, tuple(sorted(met)), links, ()))
    # What depends on a result depends on all that the result depends on.
    ordered = (sorted(links, key=_count) for links in found)
    return Links(*map(tuple, ordered))


def _changes_each(effects: Effects) -> bool:
    """Whether what happens to an input concerns no other input, so that any may come first."""
    actions = [action for mutation in effects.mutations for action in mutation.actions]
    return not (effects.flats or effects.regions or any(action.origins for action in actions))


def _count(link: Link) -> int:
    return functools.reduce(operator.or_, link.behind).bit_count()


def _returned_as(effects: Effects, places: tuple[int, ...]) -> tuple[int, ...]:
    """Which outputs of the function a result is, if nothing else is made of it."""
    found = {i: output for i, output in enumerate(effects.outputs) if output.result in places}
    written = {result for mutation in effects.mutations for result in mutation.results}
    origins = [output.origin for output in effects.outputs if output.origin is not None]
    is_made_of = any(not set(origin.results).isdisjoint(places) for origin in origins)
    changed = {index for index, _ in effects.attached}
    if is_made_of or not written.isdisjoint(places) or not changed.isdisjoint(found):
        return ()
    plain = all(output.is_result and output.of_class is None for output in found.values())
    return tuple(found) if plain else ()
