"""An autograd node of its own for each result that depends on others; entries attach them.

Note [Own nodes]: one node makes all results of a call. With that alone the engine wouldn't know
what one result owes to another: ``torch.autograd.grad(loss, features)`` would find no way, and a
hook on ``features`` would see a part of its gradient. So a result that depends on others comes
through a node of its own, which leads to the call's node and to those others. In general it only
hands its gradient on, and the call's node takes everything back to the inputs in one program.
Where somebody looks at the gradient by one of the others (a hook, ``retain_grad``, an input of
``torch.autograd.grad``), the own node goes back as far as that one instead, gives it its part,
and leaves the gradients of inputs that don't come through it to the call's node.
"""

from __future__ import annotations

import functools
import operator
import threading
from collections.abc import Callable, Container, Mapping, Sequence
from dataclasses import replace
from typing import Any, NamedTuple
from weakref import ref

import torch

from funcaot._torch.autograd import autograd, nodes
from funcaot._torch.dynamo import captured
from funcaot._torch.dynamo.dynamo import hidden_from_dynamo
from funcaot._torch.levels.situation import situation
from funcaot.aot.effects import epilogue
from funcaot.aot.effects.effects import Effects
from funcaot.aot.segment.segment import Link, Segment, Shown
from funcaot.errors import UnsupportedError

__all__ = ["added", "between", "finish", "of_derivative", "refuse_seen", "taken", "tell"]

# Of one thread's backwards, how many may have left something for one node.
_MOST = 16


class Left(NamedTuple):
    """What an own node leaves to the node of its call.

    Attributes:
        output: Its output of the graph.
        gradient: What it has handed on, which was taken care of.
        made: Gradients of the operands.
        thread: Where it ran.
    """

    output: int
    gradient: torch.Tensor
    made: tuple[torch.Tensor | None, ...]
    thread: int


class Seen(NamedTuple):
    """A tensor that the caller has of a call.

    Attributes:
        alive: Itself, as long as somebody has it.
        hooks: Those on it, with those that it gets later, also once it is gone.
        version: Its version when the call returned it.
    """

    alive: ref[torch.Tensor]
    hooks: Any
    version: int

    @property
    def unchanged(self) -> torch.Tensor | None:
        """The tensor if it is there, and in the place of autograd's graph that the call gave it."""
        tensor = self.alive()
        return tensor if tensor is not None and tensor._version == self.version else None


class _Call:
    """One call, as the nodes of its results see it.

    Attributes:
        owner: The segment in the form that ran.
        node: Its own node.
        seen: What the caller has, by position in the segment's ``shown``; derivatives see it too.
    """

    def __init__(self, owner: Any, seen: Mapping[int, Seen] | None = None) -> None:
        self.owner = owner
        self.node: Any = None
        self.seen: dict[int, Seen] = dict(seen) if seen else {}
        self._looked_at = -1, 0

    def see(self, position: int, tensor: torch.Tensor) -> None:
        """Take note of what the caller has for a position in the segment's ``shown``."""
        if position not in self.seen:
            self.seen[position] = Seen(ref(tensor), _hooks_of(tensor), tensor._version)

    def unchanged(self, position: int) -> torch.Tensor | None:
        """What the caller has, if it has it, in the place of autograd's graph that it had."""
        return self.seen[position].unchanged if position in self.seen else None

    def tell(self, values: Sequence[Any], tensors: Mapping[int, Any]) -> None:
        """Tell the call's node of what derivatives may depend on.

        Args:
            values: What it made, as its node gave it out.
            tensors: What the caller has, by position in the segment's ``shown``.
        """
        node = _node_of(values)
        if nodes.function_class(node) is None:
            return
        for position, tensor in tensors.items():
            if nodes.has_grad_fn(tensor):
                self.see(position, tensor)
        node.seen = self.seen

    def looked_at(self) -> int:
        """Of which of these somebody looks at the gradient in this backward, as bits."""
        task, (of, found) = nodes.backward_in_progress(), self._looked_at
        if of == task:
            return found
        found = 0
        taken_out = captured.handed_out() if captured.is_watching() else None
        for position, (alive, hooks, _) in self.seen.items():
            tensor = alive()
            kept = tensor is not None and tensor.retains_grad
            if kept or hooks or taken_out is None or self._is_in(taken_out, position, tensor):
                found |= 1 << position
        self._looked_at = task, found
        return found

    def _is_in(
        self, edges: Sequence[tuple[Any, int]], position: int, tensor: torch.Tensor | None
    ) -> bool:
        if not edges:
            return False
        if tensor is not None:
            return (tensor.grad_fn, tensor.output_nr) in edges
        own = self.owner.segment.shown[position].own
        return any(self._output_of(*edge) == own for edge in edges) and own is not None

    def _output_of(self, node: Any, number: int) -> int | None:
        """Of which output of the graph the gradient arrives at an edge."""
        if node is self.node:
            return number
        others: _Others | None = getattr(node, "others", None)
        return others.link.output if others is not None and others.call is self else None


class _Others(NamedTuple):
    """What a result depends on, as its own node sees it.

    Attributes:
        call: The call that made it.
        link: Which result it is.
        positions: In the segment's ``shown``, of those that the node leads to.
        lost: Hooks on those that it can't lead to, as nobody has them any more.
    """

    call: _Call
    link: Link
    positions: tuple[int, ...]
    lost: tuple[Any, ...] = ()

    def stops(self) -> tuple[int, ...]:
        """Positions of those by which or behind which somebody looks at the gradient."""
        if any(self.lost):
            raise _lost(self.call.owner.segment.settings.name)
        found = self.call.looked_at()
        if not found:
            return ()
        pairs = zip(self.link.on, self.link.behind, strict=True)
        return tuple(at for at, bits in pairs if bits & found and at in self.positions)

    def handed_on(self, gradient: torch.Tensor, stops: tuple[int, ...]) -> list[Any]:
        """What each of the others is given, where some of them stop the gradient."""
        owner, node = self.call.owner, self.call.node
        tangents: list[torch.Tensor | None] = [None] * len(owner.segment.output_nodes)
        tangents[self.link.output] = gradient
        complete = getattr(nodes.function_class(node), "complete", None)
        if complete is not None:
            complete(node)
        made = owner.backward_of(node, owner.saved(node), tuple(tangents), stops)
        count = len(owner.segment.operands)
        _leave(node, Left(self.link.output, gradient, made[:count], threading.get_ident()))
        given = dict(zip(stops, made[count:], strict=True))
        return [given.get(position) for position in self.positions]


def _hooks_of(tensor: torch.Tensor) -> Any:
    """The hooks on a tensor, with those that it gets later, also once the tensor is gone."""
    if tensor._backward_hooks is None:
        nodes.prepare_hooks(tensor)
    return tensor._backward_hooks


class OwnNode(torch.autograd.Function):
    """A result as it is, with the others that it depends on."""

    @staticmethod
    def forward(  # type: ignore[override]
        ctx: Any, others: _Others, result: torch.Tensor, *tensors: torch.Tensor
    ) -> torch.Tensor:
        """Hold on to what the backward asks."""
        ctx.set_materialize_grads(False)
        ctx.others = others
        return result.detach()

    @staticmethod
    @hidden_from_dynamo
    def backward(ctx: Any, gradient: torch.Tensor | None) -> tuple[Any, ...]:  # type: ignore[override]
        """Hand the gradient on to the call's node, or to what somebody looks at."""
        edges = ctx.next_functions
        if gradient is None:
            return (None,) * (1 + len(edges))
        stops = ctx.others.stops()
        if not stops:
            return (None, gradient, *[None] * (len(edges) - 1))
        return (None, gradient, *ctx.others.handed_on(gradient, stops))


_attach = autograd.native_apply(OwnNode)


def finish(
    owner: Any,
    effects: Effects,
    inputs: Sequence[torch.Tensor],
    results: Sequence[torch.Tensor | None],
) -> list[Any]:
    """Change the inputs and make the outputs of a function, those with their own nodes too.

    Args:
        owner: The segment in the form that ran.
        effects: The plan.
        inputs: The call's inputs, then what regions add.
        results: What the graph computed.

    Returns:
        The flat outputs.
    """
    segment, call = owner.segment, _Call(owner)
    values = between(owner, results, call=call)
    if segment.links.made:
        ordered = sorted(effects.mutations, key=lambda each: _turn(segment.turns, each.index))
        plan = replace(effects, mutations=tuple(ordered))
        outputs = epilogue.finish(plan, inputs, values, _InTurn(call, inputs, values))
    else:
        outputs = epilogue.finish(effects, inputs, values)
    for link in segment.links.outputs:
        others = {at: _visible(segment.shown[at], outputs, inputs) for at in link.on}
        _put(call, outputs, link.places, (link, others))
    if segment.links.rest:
        _show(owner, results, outputs, inputs)
    if segment.noted:
        noted = {at: _visible(segment.shown[at], outputs, inputs) for at in segment.noted}
        call.tell(_made_of(segment, results), noted)
    return outputs


def between(
    owner: Any,
    values: Sequence[Any],
    *,
    made: bool = False,
    call: _Call | None = None,
    before: Mapping[int, Seen] | None = None,
) -> list[Any]:
    """Results of which those that depend on others have nodes of their own.

    Args:
        owner: The segment in the form that ran.
        values: What it made: its results, or with ``made`` the outputs of its graph.
        made: See ``values``.
        call: The call, if something else is told of it too.
        before: Of a derivative, what the caller has of the calls that it derives from.
    """
    segment, found = owner.segment, list(values)
    now = call or _Call(owner, before)
    places: Any = range(len(found)) if made else segment.first_places
    for link in segment.links.results:
        others: dict[int, torch.Tensor | None] = {}
        for position in link.on:
            own = segment.shown[position].own
            others[position] = now.unchanged(position) if own is None else found[places[own]]
        _put(now, found, (link.output,) if made else link.places, (link, others))
    if call is None and segment.noted:
        shown = {at: segment.shown[at].own for at in segment.noted}
        own = {at: found[places[each]] for at, each in shown.items() if each is not None}
        now.tell([values[each] for each in (places if made else places.values())], own)
    return found


def tell(segment: Segment, made: Sequence[Any]) -> None:
    """Tell the node of a call whose results have no others of what derivatives may depend on.

    Args:
        segment: What ran.
        made: The outputs of its graph.
    """
    seen: dict[int, Seen] = {}
    node: Any = None
    for position in segment.noted:
        own = segment.shown[position].own
        if own is not None and made[own].grad_fn is not None:
            value = made[own]
            node, seen[position] = value.grad_fn, Seen(ref(value), _hooks_of(value), value._version)
    if node is not None:
        node.seen = seen


def of_derivative(
    functions: Any, ctx: Any, values: Sequence[Any], *, made: bool = False
) -> Sequence[Any]:
    """Gradients that will be differentiated, with what they depend on of what the caller has.

    Args:
        functions: The forms of the segment that ran.
        ctx: The node whose gradients they are.
        values: What it made: its results, or with ``made`` the outputs of its graph.
        made: See ``values``.
    """
    if not functions.segment.is_told or situation().derives or not torch.is_grad_enabled():
        return values
    return between(functions.keeping, values, made=made, before=getattr(ctx, "seen", None))


def _turn(turns: Sequence[int], index: int) -> int:
    return turns.index(index) if index in turns else len(turns)


class _InTurn:
    """Puts nodes between the values of a call as soon as what they lead to is there."""

    def __init__(self, call: _Call, inputs: Sequence[torch.Tensor], values: list[Any]) -> None:
        self._call, self._inputs, self._values = call, inputs, values
        self._pending = list(call.owner.segment.links.made)

    def __call__(self, waiting: Container[int], made: Callable[[int], Any]) -> None:
        """Put those of which it is there now.

        Args:
            waiting: Inputs that don't have their new data yet.
            made: Makes an output of the function.
        """
        shown = self._call.owner.segment.shown
        while self._pending:
            link = self._pending[0]
            bits = functools.reduce(operator.or_, link.behind)
            behind = [each for at, each in enumerate(shown) if bits >> at & 1]
            if any(each.output is None and each.input in waiting for each in behind):
                return
            self._pending.pop(0)
            others = {at: self._visible(shown[at], made) for at in link.on}
            _put(self._call, self._values, link.places, (link, others))

    def _visible(self, shown: Shown, made: Callable[[int], Any]) -> Any:
        if shown.output is None:
            return self._inputs[shown.input]
        if shown.own is None:
            return made(shown.output)
        return self._values[self._call.owner.segment.first_places[shown.own]]


def _put(
    call: _Call, values: list[Any], places: Sequence[int], linked: tuple[Link, Mapping[int, Any]]
) -> None:
    """Replace a result by one with its own node, wherever it is among some values."""
    link, others = linked
    result = values[places[0]]
    node = None if result is None else result.grad_fn
    if nodes.function_class(node) is None:
        return
    there = {
        at: other for at, other in others.items() if other is not None and nodes.has_grad_fn(other)
    }
    lost: Sequence[Any] = ()
    if len(there) < len(others):
        gone = [at for at, other in others.items() if other is None and at in call.seen]
        lost = [call.seen[at].hooks for at in gone]
    if not (there or lost):
        return
    captured.is_watching()
    call.node = node
    for at, other in there.items():
        call.see(at, other)
    seen = _Others(call, link, tuple(there), tuple(lost))
    if torch.is_grad_enabled():
        own = _attach(seen, result, *there.values())
    else:
        with torch.enable_grad():
            own = _attach(seen, result, *there.values())
    for place in places:
        values[place] = own


def _lost(name: str) -> UnsupportedError:
    return UnsupportedError(
        f"A derivative of a gradient of {name} depends on a result with a hook, and nobody has "
        "that result any more, or it was written to after the call: the hook can't be called.",
        remedy="keep the result as long as its derivatives are computed; or leave the hook out.",
    )


def _made_of(segment: Segment, results: Sequence[Any]) -> list[Any]:
    """Results that the graph computed, as the call's node gave them out."""
    made = zip(results, segment.places, strict=True)
    return [result for result, place in made if place.output is not None]


def _node_of(values: Sequence[Any]) -> Any:
    """The node of a call, by what it gave out; None if that has no history."""
    histories = (value.grad_fn for value in values if value is not None)
    return next((history for history in histories if history is not None), None)


def _visible(shown: Shown, outputs: Sequence[Any], inputs: Sequence[Any]) -> torch.Tensor:
    return inputs[shown.input] if shown.output is None else outputs[shown.output]


def _leave(node: Any, left: Left) -> None:
    now = nodes.backward_in_progress()
    waiting: dict[int, list[Left]] | None = getattr(node, "left", None)
    if waiting is None:
        waiting = node.left = {}
    waiting.setdefault(now, []).append(left)
    # The call's node doesn't run where it is only a gradient's way out.
    own = [task for task, each in [*waiting.items()] if each[0].thread == left.thread]
    for task in own[:-_MOST]:
        waiting.pop(task, None)


def taken(
    ctx: Any, tangents: tuple[torch.Tensor | None, ...]
) -> tuple[tuple[torch.Tensor | None, ...], list[Left]]:
    """The gradients that a call's node has to take care of itself, and what was left to it."""
    waiting: dict[int, list[Left]] | None = getattr(ctx, "left", None)
    found = waiting.pop(nodes.backward_in_progress(), []) if waiting else []
    rest = list(tangents)
    for left in found:
        arrived = rest[left.output]
        if arrived is not None:
            # More arrives where a derivative of the backward leads here too.
            rest[left.output] = None if arrived is left.gradient else arrived - left.gradient
    return tuple(rest), found


def added(made: Sequence[torch.Tensor | None], left: Sequence[Left]) -> tuple[Any, ...]:
    """A call's gradients with those that were left to it."""
    if not left:
        return tuple(made)
    total = list(made)
    for each in left:
        for index, part in enumerate(each.made):
            if part is not None:
                whole = total[index]
                total[index] = part if whole is None else whole + part
    return tuple(total)


def _show(
    owner: Any, results: Sequence[Any], outputs: Sequence[Any], inputs: Sequence[Any]
) -> None:
    """Tell the node of a call of the results that have no nodes of their own, though they depend.

    Args:
        owner: The segment in the form that ran.
        results: Its results, as it made them.
        outputs: Outputs of the function.
        inputs: Its inputs, with their new values.
    """
    segment = owner.segment
    node = _node_of(_made_of(segment, results))
    if node is None:
        return
    call, node.rest = _Call(owner), []
    for link in segment.links.rest:
        others = {at: _visible(segment.shown[at], outputs, inputs) for at in link.on}
        for at, other in others.items():
            if nodes.has_grad_fn(other):
                call.see(at, other)
        node.rest.append(_Others(call, link, link.on))


def refuse_seen(owner: Any, ctx: Any, tangents: Sequence[torch.Tensor | None]) -> None:
    """Refuse a backward whose gradients somebody has seen without a part of theirs.

    Raises:
        UnsupportedError: One of the results that ``_show`` told of is looked at.
    """
    for others in getattr(ctx, "rest", ()):
        if tangents[others.link.output] is not None and others.stops():
            raise UnsupportedError(
                f"Somebody looks at the gradient by a result of {owner.segment.settings.name} on "
                "which new data of an argument depends, with a hook or retain_grad. One autograd "
                "node makes both, so it is the gradient without that part.",
                remedy="return a new tensor in place of writing to the argument; or compile what "
                "makes the tensor and what uses it as two functions.",
            )
